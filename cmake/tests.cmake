# Tests: every tests/test_<suite>.c is one program and one ctest entry. A line `ctest: ci` (or `long`) in its first 20
# lines sets the label; the default is `quick`. Shared helpers live in tests/support/.
find_package(PkgConfig REQUIRED)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
file(GLOB KEDGE_TEST_SUPPORT CONFIGURE_DEPENDS tests/support/*.c)
file(GLOB KEDGE_TEST_FILES CONFIGURE_DEPENDS tests/test_*.c)
if(NOT TARGET kedge-sim)
  list(FILTER KEDGE_TEST_FILES EXCLUDE REGEX "/test_sim[a-z_]*\\.c$")
endif()
# The races of kernels are looked for in builds without other sanitizers.
if(KEDGE_SANITIZE)
  list(FILTER KEDGE_TEST_FILES EXCLUDE REGEX "/test_sim_races\\.c$")
endif()
if(NOT KEDGE_TEST_SUPPORT AND NOT KEDGE_OPS)
  return()
endif()
add_library(kedge_test_support STATIC ${KEDGE_TEST_SUPPORT} ${KEDGE_OPS})
target_compile_definitions(kedge_test_support PRIVATE KEDGE_REAL=double KEDGE_PART_CASES=1)
# Rows of case tables leave out what has its default.
target_compile_options(kedge_test_support PRIVATE -Wno-missing-field-initializers)
target_link_libraries(kedge_test_support PUBLIC kedge_flags kedge_static PkgConfig::CMOCKA PkgConfig::JANSSON
  PkgConfig::YAML PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::XXHASH PkgConfig::ZLIB PkgConfig::IGRAPH OpenMP::OpenMP_C m)
set(KEDGE_TEST_ENVIRONMENT OMP_WAIT_POLICY=passive KEDGE_BIN=${PROJECT_BINARY_DIR}/kedge
  KEDGE_SOURCE=${PROJECT_SOURCE_DIR} UBSAN_OPTIONS=print_stacktrace=1)
set(KEDGE_TEST_LAUNCHER)
if(KEDGE_SANITIZE MATCHES address)
  # Ranks run under the leak checker, too: it can tell MPI's plug-ins from Kedge only while they are loaded.
  target_sources(kedge PRIVATE tests/sanitized/keep_loaded.c)
  set_target_properties(kedge PROPERTIES ENABLE_EXPORTS ON)
  # A test that loads a module has Kedge's tables twice, its own and those of the library that the module names; the
  # linker makes both use the first.
  list(APPEND KEDGE_TEST_ENVIRONMENT ASAN_OPTIONS=detect_odr_violation=0
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
endif()
if(KEDGE_SANITIZE MATCHES thread)
  # Archer tells the sanitizer of OpenMP's barriers. Its address map wants the layout of memory not to be random.
  find_library(KEDGE_ARCHER archer HINTS /usr/lib/llvm-14/lib REQUIRED)
  list(APPEND KEDGE_TEST_ENVIRONMENT OMP_TOOL_LIBRARIES=${KEDGE_ARCHER}
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1 halt_on_error=1")
  set(KEDGE_TEST_LAUNCHER setarch ${CMAKE_SYSTEM_PROCESSOR} --addr-no-randomize)
endif()
function(kedge_test name label)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 600 SKIP_RETURN_CODE 77
    ENVIRONMENT "${KEDGE_TEST_ENVIRONMENT}")
endfunction()

foreach(file IN LISTS KEDGE_TEST_FILES)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_compile_definitions(${name} PRIVATE KEDGE_REAL=double)
  target_link_libraries(${name} PRIVATE kedge_test_support)
  if(KEDGE_SANITIZE MATCHES address)
    target_sources(${name} PRIVATE tests/sanitized/keep_loaded.c)
  endif()
  # A backend's module finds Kedge's functions in the program that loads it.
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  file(STRINGS ${file} label_line REGEX "ctest: (quick|ci|long)" LIMIT_COUNT 1)
  set(label quick)
  if(label_line MATCHES "ctest: (quick|ci|long)")
    set(label ${CMAKE_MATCH_1})
  endif()
  set(launcher ${KEDGE_TEST_LAUNCHER})
  if(name STREQUAL test_sim_races)
    set(launcher setarch ${CMAKE_SYSTEM_PROCESSOR} --addr-no-randomize)
  endif()
  kedge_test(${name} ${label} ${launcher} $<TARGET_FILE:${name}>)
endforeach()

# Products on AMX's tiles, with the tile instructions as plain C.
add_library(kedge_cpu_emulated OBJECT ${KEDGE_CPU_PRODUCTS})
target_link_libraries(kedge_cpu_emulated PRIVATE kedge_flags kedge_blas OpenMP::OpenMP_C)
target_compile_options(kedge_cpu_emulated PRIVATE ${cpu_options})
target_compile_definitions(kedge_cpu_emulated PRIVATE KEDGE_REAL=float KEDGE_STORAGE_BF16=1 KEDGE_AMX=1
  KEDGE_AMX_EMULATED=1 KEDGE_BUILD=cpu_emulated_bf16)
target_link_libraries(test_cpu_products PRIVATE kedge_cpu_emulated)

# The sources themselves, and an installed copy as others use it.
kedge_test(check_tree quick ${PROJECT_SOURCE_DIR}/tests/check_tree.sh ${PROJECT_SOURCE_DIR})
if(NOT KEDGE_SANITIZE)
  kedge_test(test_isa ci ${PROJECT_SOURCE_DIR}/tests/test_isa.sh ${PROJECT_BINARY_DIR})
  kedge_test(test_ranks_hosts ci ${PROJECT_SOURCE_DIR}/tests/test_ranks_hosts.sh ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
  kedge_test(test_install quick ${PROJECT_SOURCE_DIR}/tests/test_install.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
endif()

# Kernels with planted mistakes, with the scheduler of the simulated card in the program itself.
if(TARGET kedge-sim)
  set_source_files_properties(tests/sim_faults.cu PROPERTIES LANGUAGE CXX)
  kedge_sim_objects(kedge_sim_faults tests/sim_faults.cu)
  target_compile_options(kedge_sim_faults PRIVATE ${sim_options})
  target_link_libraries(test_sim_faults PRIVATE kedge_sim_faults $<TARGET_OBJECTS:kedge_sim_scheduler>)
  set_target_properties(test_sim_faults PROPERTIES LINKER_LANGUAGE CXX)
  # The vendors' dense products under their names, on the host.
  foreach(vendor cublaslt hipblaslt)
    string(TOUPPER ${vendor} name)
    add_library(kedge_test_${vendor} MODULE tests/blas_double.c)
    target_link_libraries(kedge_test_${vendor} PRIVATE kedge_flags)
    target_compile_definitions(test_sim_blas PRIVATE KEDGE_TEST_${name}="$<TARGET_FILE:kedge_test_${vendor}>")
    add_dependencies(test_sim_blas kedge_test_${vendor} kedge-sim)
  endforeach()
  target_compile_definitions(kedge_test_hipblaslt PRIVATE BLAS_HIP=1)
endif()

# The kernels once more for the thread sanitizer, as a module of its own folder, and a program that has the sanitizer. Its map
# of addresses wants the layout of memory not to be random.
if(TARGET test_sim_races)
  set(races_options -O1 -g -fsanitize=thread -fno-omit-frame-pointer)
  kedge_sim_objects(kedge_sim_races_kernels ${KEDGE_GPU_KERNELS})
  target_compile_options(kedge_sim_races_kernels PRIVATE ${sim_options} ${races_options})
  add_library(kedge_sim_races MODULE EXCLUDE_FROM_ALL ${KEDGE_GPU_HOST} $<TARGET_OBJECTS:kedge_sim_races_kernels>
    $<TARGET_OBJECTS:kedge_sim_scheduler>)
  set_target_properties(kedge_sim_races PROPERTIES OUTPUT_NAME kedge-sim LIBRARY_OUTPUT_DIRECTORY
    ${PROJECT_BINARY_DIR}/races BUILD_RPATH "$ORIGIN/..")
  target_compile_definitions(kedge_sim_races PRIVATE ${sim_defines})
  target_link_libraries(kedge_sim_races PRIVATE kedge_flags kedge_shared)
  target_link_options(kedge_sim_races PRIVATE -fsanitize=thread)
  kedge_sim_objects(kedge_sim_races_faults tests/sim_faults.cu)
  target_compile_options(kedge_sim_races_faults PRIVATE ${sim_options} ${races_options})
  target_link_libraries(test_sim_races PRIVATE kedge_sim_races_faults $<TARGET_OBJECTS:kedge_sim_scheduler>)
  target_link_options(test_sim_races PRIVATE -fsanitize=thread)
  target_compile_definitions(test_sim_races PRIVATE KEDGE_RACES_MODULES="${PROJECT_BINARY_DIR}/races")
  add_dependencies(test_sim_races kedge_sim_races)
  set_target_properties(test_sim_races PROPERTIES LINKER_LANGUAGE CXX)
endif()

# Every kernel of every module of a vendor, for every target.
foreach(module cuda hip)
  if(TARGET kedge-${module} AND NOT KEDGE_SANITIZE)
    kedge_test(test_gpu_kernels_${module} quick ${PROJECT_SOURCE_DIR}/tests/test_gpu_kernels.sh ${PROJECT_BINARY_DIR}
      ${module} ${KEDGE_GPU_TARGETS_${module}})
  endif()
endforeach()

# NCCL's functions: a library with their names that works on host memory, and what an installed one is compared with.
add_library(kedge_test_nccl MODULE tests/nccl/host.c)
set_target_properties(kedge_test_nccl PROPERTIES OUTPUT_NAME kedge-test-nccl C_VISIBILITY_PRESET default)
target_link_libraries(kedge_test_nccl PRIVATE kedge_flags rt)
find_library(KEDGE_NCCL_LIBRARY NAMES libnccl.so.2 HINTS $ENV{CUDA_HOME}/lib64 /usr/local/cuda/lib64 /usr/local/cuda/lib)
find_library(KEDGE_RCCL_LIBRARY NAMES librccl.so.1 HINTS /opt/rocm/lib)
find_path(KEDGE_NCCL_INCLUDE nccl.h HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
find_path(KEDGE_CUDA_INCLUDE cuda_runtime.h HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
foreach(library NCCL RCCL)
  set(found "${KEDGE_${library}_LIBRARY}")
  if(NOT found)
    set(found "")
  endif()
  target_compile_definitions(test_nccl PRIVATE KEDGE_${library}_LIBRARY="${found}")
endforeach()
add_library(kedge_nccl_signatures OBJECT tests/nccl/signatures.c)
target_include_directories(kedge_nccl_signatures PRIVATE ${PROJECT_SOURCE_DIR})
if(KEDGE_NCCL_INCLUDE AND KEDGE_CUDA_INCLUDE)
  target_include_directories(kedge_nccl_signatures SYSTEM PRIVATE ${KEDGE_NCCL_INCLUDE} ${KEDGE_CUDA_INCLUDE})
  target_compile_definitions(kedge_nccl_signatures PRIVATE KEDGE_NCCL_HEADER=1)
endif()
target_link_libraries(test_nccl PRIVATE kedge_nccl_signatures ${CMAKE_DL_LIBS})
