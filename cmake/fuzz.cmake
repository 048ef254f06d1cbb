# Fuzz targets: every tests/fuzz/fuzz_<name>.c. With KEDGE_FUZZ and Clang, fuzz_<name> with libFuzzer (tests/fuzz/run.sh);
# among the tests always replay_<name>, which runs the seeds of tests/fuzz/corpus/<name> and a few seconds of mutations.
file(GLOB KEDGE_FUZZ_FILES CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
list(FILTER KEDGE_FUZZ_FILES EXCLUDE REGEX "/fuzz_file\\.c$")

function(kedge_fuzz_program target file name)
  add_executable(${target} ${file} tests/fuzz/fuzz_file.c ${ARGN})
  target_compile_definitions(${target} PRIVATE KEDGE_REAL=double KEDGE_FUZZ_NAME="${name}")
  target_link_libraries(${target} PRIVATE kedge_flags kedge_static PkgConfig::JANSSON PkgConfig::YAML PkgConfig::PCRE2
    PkgConfig::UTF8PROC PkgConfig::XXHASH PkgConfig::ZLIB PkgConfig::IGRAPH OpenMP::OpenMP_C m)
endfunction()

foreach(file IN LISTS KEDGE_FUZZ_FILES)
  get_filename_component(target ${file} NAME_WE)
  string(REPLACE fuzz_ "" name ${target})
  if(KEDGE_FUZZ)
    kedge_fuzz_program(${target} ${file} ${name})
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  endif()
  if(KEDGE_TESTS AND NOT KEDGE_FUZZ)
    kedge_fuzz_program(replay_${name} ${file} ${name} tests/fuzz/replay.c)
    kedge_test(replay_${name} ci ${KEDGE_TEST_LAUNCHER} $<TARGET_FILE:replay_${name}>
      ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name} 4)
    set_tests_properties(replay_${name} PROPERTIES WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  endif()
endforeach()
