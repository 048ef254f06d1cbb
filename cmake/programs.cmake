# The program `kedge`: tools/main.c and one file a sub-command.
file(GLOB KEDGE_TOOLS CONFIGURE_DEPENDS tools/*.c)
if(KEDGE_TOOLS)
  add_executable(kedge ${KEDGE_TOOLS})
  target_compile_definitions(kedge PRIVATE KEDGE_REAL=double)
  target_link_libraries(kedge PRIVATE kedge_flags kedge_shared PkgConfig::JANSSON m)
endif()
