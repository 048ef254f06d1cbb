# libkedge, shared and static, from core, models and the built-in backends (ref, cpu, null).
#
# An op's family file core/ops/<family>.c is compiled once for its rules and once for each storage type of the reference
# kernels; a tuned file backends/cpu/<family>.c once for each (instruction set, storage type).

file(GLOB KEDGE_CORE CONFIGURE_DEPENDS core/*.c)
file(GLOB KEDGE_OPS CONFIGURE_DEPENDS core/ops/*.c)
file(GLOB KEDGE_MODELS CONFIGURE_DEPENDS models/*.c models/*/*.c)
file(GLOB KEDGE_BACKENDS CONFIGURE_DEPENDS backends/*.c backends/ref/*.c backends/null/*.c backends/cpu/*.c
  backends/comm/*.c)
list(FILTER KEDGE_BACKENDS EXCLUDE REGEX "/comm/mpi\\.c$") # a module of its own, cmake/modules.cmake
if(KEDGE_OPENBLAS)
  list(FILTER KEDGE_BACKENDS EXCLUDE REGEX "/plain_blas\\.c$")
endif()
file(GLOB KEDGE_CPU_KERNELS CONFIGURE_DEPENDS backends/cpu/kernels/*.c)
# Those with products, KEDGE_CPU_PRODUCT in backends/cpu/kernels.def.
set(KEDGE_CPU_PRODUCTS backends/cpu/kernels/attention.c backends/cpu/kernels/matmul.c
  backends/cpu/kernels/softmax.c)

set(KEDGE_OBJECTS)

# kedge_objects(name sources... [OPTIONS compile options] [DEFINES definitions])
function(kedge_objects name)
  cmake_parse_arguments(P "" "" "SOURCES;OPTIONS;DEFINES" ${ARGN})
  if(NOT P_SOURCES)
    return()
  endif()
  add_library(${name} OBJECT ${P_SOURCES})
  target_link_libraries(${name} PRIVATE kedge_flags PkgConfig::JANSSON PkgConfig::YAML PkgConfig::PCRE2
    PkgConfig::UTF8PROC PkgConfig::XXHASH PkgConfig::ZLIB PkgConfig::IGRAPH kedge_blas OpenMP::OpenMP_C)
  target_compile_options(${name} PRIVATE ${P_OPTIONS})
  target_compile_definitions(${name} PRIVATE ${P_DEFINES})
  set(KEDGE_OBJECTS ${KEDGE_OBJECTS} $<TARGET_OBJECTS:${name}> PARENT_SCOPE)
endfunction()

kedge_objects(kedge_core SOURCES ${KEDGE_CORE} ${KEDGE_BACKENDS} ${KEDGE_MODELS} DEFINES KEDGE_REAL=double)
kedge_objects(kedge_rules SOURCES ${KEDGE_OPS} DEFINES KEDGE_PART_RULES=1 KEDGE_REAL=double)
# Reference kernels never contract a multiply and an add, so that their bits are the same wherever they run.
set(ref_options -ffp-contract=off)
kedge_objects(kedge_ref_f32 SOURCES ${KEDGE_OPS} OPTIONS ${ref_options} DEFINES KEDGE_PART_KERNELS=1 KEDGE_REAL=float
  KEDGE_STORAGE_F32=1 KEDGE_BUILD=ref_f32)
kedge_objects(kedge_ref_bf16 SOURCES ${KEDGE_OPS} OPTIONS ${ref_options} DEFINES KEDGE_PART_KERNELS=1 KEDGE_REAL=float
  KEDGE_STORAGE_BF16=1 KEDGE_BUILD=ref_bf16)
kedge_objects(kedge_ref_f64 SOURCES ${KEDGE_OPS} OPTIONS ${ref_options} DEFINES KEDGE_PART_KERNELS=1 KEDGE_REAL=double
  KEDGE_STORAGE_F64=1 KEDGE_BUILD=ref_f64)

# Tuned CPU kernels: one build an instruction set, chosen at run time (backends/cpu/cpu.c, KEDGE_ISA).
# Their loops may contract and vectorise what ISO C would not: no errno, no floating-point traps.
set(cpu_options -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
set(isa_options_base)
set(isa_options_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(isa_options_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
set(KEDGE_ISAS base)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND KEDGE_ISAS avx2 avx512)
endif()
foreach(isa IN LISTS KEDGE_ISAS)
  kedge_objects(kedge_cpu_${isa}_f32 SOURCES ${KEDGE_CPU_KERNELS} OPTIONS ${cpu_options} ${isa_options_${isa}} DEFINES
    KEDGE_REAL=float KEDGE_STORAGE_F32=1 KEDGE_BUILD=cpu_${isa}_f32)
  kedge_objects(kedge_cpu_${isa}_bf16 SOURCES ${KEDGE_CPU_KERNELS} OPTIONS ${cpu_options} ${isa_options_${isa}} DEFINES
    KEDGE_REAL=float KEDGE_STORAGE_BF16=1 KEDGE_BUILD=cpu_${isa}_bf16)
  list(APPEND kernel_targets kedge_cpu_${isa}_f32 kedge_cpu_${isa}_bf16)
endforeach()

# Products of bf16 once more for the instruction sets that multiply bf16.
if("avx512" IN_LIST KEDGE_ISAS)
  set(isa_options_avx512bf16 ${isa_options_avx512} -mavx512bf16)
  kedge_objects(kedge_cpu_avx512bf16 SOURCES ${KEDGE_CPU_PRODUCTS} OPTIONS ${cpu_options} ${isa_options_avx512bf16}
    DEFINES KEDGE_REAL=float KEDGE_STORAGE_BF16=1 KEDGE_BUILD=cpu_avx512bf16_bf16)
  kedge_objects(kedge_cpu_amx SOURCES ${KEDGE_CPU_PRODUCTS} OPTIONS ${cpu_options} ${isa_options_avx512}
    DEFINES KEDGE_REAL=float KEDGE_STORAGE_BF16=1 KEDGE_AMX=1 KEDGE_BUILD=cpu_amx_bf16)
  list(APPEND kernel_targets kedge_cpu_avx512bf16 kedge_cpu_amx)
endif()
# Fuzz targets run no kernels, and Clang takes minutes for each file of vectors that it instruments.
if(KEDGE_FUZZ)
  foreach(target IN LISTS kernel_targets)
    set_property(TARGET ${target} PROPERTY KEDGE_UNCHECKED ON)
  endforeach()
endif()

foreach(kind SHARED STATIC)
  string(TOLOWER kedge_${kind} target)
  add_library(${target} ${kind} ${KEDGE_OBJECTS})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME kedge VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR})
  target_link_libraries(${target} PRIVATE PkgConfig::JANSSON PkgConfig::YAML PkgConfig::PCRE2 PkgConfig::UTF8PROC
    PkgConfig::XXHASH PkgConfig::ZLIB PkgConfig::IGRAPH kedge_blas OpenMP::OpenMP_C m
    ${CMAKE_DL_LIBS})
  if(KEDGE_SANITIZE)
    target_link_options(${target} PRIVATE -fsanitize=${KEDGE_SANITIZE})
  endif()
endforeach()
if(NOT KEDGE_SANITIZE)
  target_link_options(kedge_shared PRIVATE -Wl,-z,defs)
endif()
