# Install: program, libraries, headers, kedge.pc. Headers keep their folders below include/kedge, so that an include
# reads the same in this tree and outside it; the public ones bring along every header they include.
install(TARGETS kedge_shared kedge_static LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET kedge)
  set_target_properties(kedge PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS kedge RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# The library finds the OpenBLAS that it was linked with, whichever flavour the system prefers.
if(KEDGE_OPENBLAS)
  set_target_properties(kedge_shared PROPERTIES INSTALL_RPATH "${OPENBLAS_LIBRARY_DIRS}")
endif()

set(KEDGE_HEADERS)
set(queue core/kedge.h models/kedge_models.h)
while(queue)
  list(POP_FRONT queue header)
  if(NOT header IN_LIST KEDGE_HEADERS)
    list(APPEND KEDGE_HEADERS ${header})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
    file(STRINGS ${header} includes REGEX "^#include \"[^\"]+\"")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
      list(APPEND queue ${included})
    endforeach()
  endif()
endwhile()
foreach(header IN LISTS KEDGE_HEADERS)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kedge/${folder})
endforeach()

# kedge.pc finds its prefix from where it lies, so that an installed tree may be moved.
file(RELATIVE_PATH KEDGE_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
# OpenBLAS by name, not by its own file: that asks for the Fortran library too, which a shared OpenBLAS brings along.
set(KEDGE_PC_BLAS)
if(KEDGE_OPENBLAS)
  set(KEDGE_PC_BLAS "-L${OPENBLAS_LIBRARY_DIRS} -lopenblas ")
endif()
configure_file(cmake/kedge.pc.in ${PROJECT_BINARY_DIR}/kedge.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kedge.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
