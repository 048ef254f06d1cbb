# libkedge-mpi.so: the transport over MPI (backends/comm/mpi.c), loaded where a launcher started the process. It needs
# nothing of libkedge. Without MPI there is none, and a run has one rank.
option(KEDGE_MPI "Build the module for MPI where MPI is installed" ON)
if(KEDGE_MPI)
  find_package(MPI QUIET COMPONENTS C)
endif()
if(NOT MPI_C_FOUND)
  message(STATUS "MPI: none found; runs have one rank (tools/setup.sh installs it)")
  return()
endif()
add_library(kedge_mpi MODULE backends/comm/mpi.c)
find_package(Threads REQUIRED)
set_target_properties(kedge_mpi PROPERTIES OUTPUT_NAME kedge-mpi)
target_link_libraries(kedge_mpi PRIVATE kedge_flags MPI::MPI_C Threads::Threads)
# MPI's own macros cast handles in ways that the warnings of Kedge's code are against.
target_compile_options(kedge_mpi PRIVATE -Wno-cast-qual)
install(TARGETS kedge_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
