# Tests: every tests/test_<suite>.c is one program and one ctest entry. A line `ctest: ci` (or `long`) in its first 20
# lines sets the label; the default is `quick`. Shared helpers live in tests/support/.
find_package(PkgConfig REQUIRED)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
file(GLOB KEDGE_TEST_SUPPORT CONFIGURE_DEPENDS tests/support/*.c)
file(GLOB KEDGE_TEST_FILES CONFIGURE_DEPENDS tests/test_*.c)
if(NOT KEDGE_TEST_SUPPORT AND NOT KEDGE_OPS)
  return()
endif()
add_library(kedge_test_support STATIC ${KEDGE_TEST_SUPPORT} ${KEDGE_OPS})
target_compile_definitions(kedge_test_support PRIVATE KEDGE_REAL=double KEDGE_PART_CASES=1)
# Rows of case tables leave out what has its default.
target_compile_options(kedge_test_support PRIVATE -Wno-missing-field-initializers)
target_link_libraries(kedge_test_support PUBLIC kedge_flags kedge_static PkgConfig::CMOCKA PkgConfig::JANSSON
  PkgConfig::YAML PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::XXHASH OpenMP::OpenMP_C m)
foreach(file IN LISTS KEDGE_TEST_FILES)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_compile_definitions(${name} PRIVATE KEDGE_REAL=double)
  target_link_libraries(${name} PRIVATE kedge_test_support)
  file(STRINGS ${file} label_line REGEX "ctest: (quick|ci|long)" LIMIT_COUNT 1)
  set(label quick)
  if(label_line MATCHES "ctest: (quick|ci|long)")
    set(label ${CMAKE_MATCH_1})
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 600 SKIP_RETURN_CODE 77
    ENVIRONMENT "OMP_WAIT_POLICY=passive;KEDGE_BIN=${PROJECT_BINARY_DIR}/kedge;KEDGE_SOURCE=${PROJECT_SOURCE_DIR}")
endforeach()
