# Graphics cards: one source of kernels (backends/gpu/*.cu), as the modules sim (host compiler), cuda (nvcc) and hip (hipcc).
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
file(GLOB KEDGE_GPU_KERNELS CONFIGURE_DEPENDS backends/gpu/*.cu)
file(GLOB KEDGE_GPU_HEADERS CONFIGURE_DEPENDS backends/gpu/*.h core/*.h core/*.def backends/gpu/*.def)
file(GLOB KEDGE_GPU_HOST CONFIGURE_DEPENDS backends/gpu/*.c)

# sim: the kernels as host code, their scheduler without sanitizers, which do not follow a change of stacks.
file(GLOB KEDGE_SIM_HOST CONFIGURE_DEPENDS backends/gpu/sim/*.c)
set(sim_defines KEDGE_GPU_SIM=1 KEDGE_REAL=float _GNU_SOURCE=1)
add_library(kedge_sim_kernels OBJECT ${KEDGE_GPU_KERNELS})
set_source_files_properties(${KEDGE_GPU_KERNELS} PROPERTIES LANGUAGE CXX)
target_include_directories(kedge_sim_kernels PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(kedge_sim_kernels PRIVATE ${sim_defines})
set(sim_options -O2 -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-but-set-variable -fno-exceptions -fno-rtti
  -fno-threadsafe-statics)
target_compile_options(kedge_sim_kernels PRIVATE ${sim_options})
add_library(kedge_sim_scheduler OBJECT ${KEDGE_SIM_HOST})
target_include_directories(kedge_sim_scheduler PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(kedge_sim_scheduler PRIVATE -O2 -Wall -Wextra -Wshadow -Werror)
target_compile_definitions(kedge_sim_scheduler PRIVATE ${sim_defines})
kedge_module(sim ${KEDGE_GPU_HOST} $<TARGET_OBJECTS:kedge_sim_kernels> $<TARGET_OBJECTS:kedge_sim_scheduler>)
target_compile_definitions(kedge-sim PRIVATE ${sim_defines})
if(KEDGE_SANITIZE)
  target_compile_options(kedge_sim_kernels PRIVATE -fsanitize=${KEDGE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
endif()
