# Install: program, libraries, headers, kedge.pc.
install(TARGETS kedge_shared kedge_static LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET kedge)
  set_target_properties(kedge PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS kedge RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES core/kedge.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kedge/core)
install(FILES models/kedge_models.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kedge/models)
configure_file(cmake/kedge.pc.in ${PROJECT_BINARY_DIR}/kedge.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kedge.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
