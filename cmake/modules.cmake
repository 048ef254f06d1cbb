# Backends that are modules, libkedge-<name>.so, loaded by core/module.c when a device of that name is opened.

# kedge_module(name sources-or-objects... [LIBRARIES libraries])
function(kedge_module name)
  cmake_parse_arguments(P "" "" "LIBRARIES" ${ARGN})
  add_library(kedge-${name} MODULE ${P_UNPARSED_ARGUMENTS})
  target_link_libraries(kedge-${name} PRIVATE kedge_flags kedge_shared ${P_LIBRARIES})
  set_target_properties(kedge-${name} PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
  if(NOT KEDGE_SANITIZE)
    target_link_options(kedge-${name} PRIVATE -Wl,-z,defs)
  endif()
  install(TARGETS kedge-${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# Builds by Clang are for its sanitizers and fuzzers, which do not follow the fibers of the simulated card.
if(NOT CMAKE_C_COMPILER_ID STREQUAL Clang)
  include(cmake/gpu.cmake)
endif()
