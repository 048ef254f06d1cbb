# libkedge-vulkan, a module loaded on demand (core/module.c), where the Vulkan headers, its loader and glslc are found.
# Every row of backends/vulkan/shaders.def is one SPIR-V module, compiled from shaders/ and embedded.
find_program(KEDGE_GLSLC glslc)
find_package(Vulkan QUIET)
if(NOT KEDGE_GLSLC OR NOT Vulkan_FOUND)
  message(STATUS "No backend vulkan: it wants libvulkan-dev and glslc")
  return()
endif()
# Matrix units (shaders/matrix.glsl): KEDGE_MATRICES is 2 where compiler and headers know KHR's extension, 1 where the
# compiler knows NV's, 0 where it knows neither.
set(KEDGE_MATRICES 0)
foreach(kind 1 2)
  execute_process(COMMAND ${KEDGE_GLSLC} -fshader-stage=compute --target-env=vulkan1.2 -DKEDGE_MATRICES=${kind} -o -
    ${PROJECT_SOURCE_DIR}/cmake/matrix.comp RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET)
  if(NOT refused)
    set(KEDGE_MATRICES ${kind})
  endif()
endforeach()
if(KEDGE_MATRICES EQUAL 2)
  file(STRINGS ${Vulkan_INCLUDE_DIRS}/vulkan/vulkan_core.h known REGEX "define VK_KHR_cooperative_matrix")
  if(NOT known)
    set(KEDGE_MATRICES 1)
  endif()
endif()
file(GLOB KEDGE_VULKAN CONFIGURE_DEPENDS backends/vulkan/*.c backends/vulkan/kernels/*.c)
set(spirv_folder ${PROJECT_BINARY_DIR}/spirv)
file(MAKE_DIRECTORY ${spirv_folder})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/backends/vulkan/shaders.def)
file(STRINGS backends/vulkan/shaders.def rows REGEX "^KEDGE_SHADER")
set(spirv_sources)
foreach(row IN LISTS rows)
  string(REGEX REPLACE "^KEDGE_SHADER\\(([a-z0-9_]+), ([a-z0-9_]+), ([a-z0-9_]+)\\).*" "\\1;\\2;\\3" parts "${row}")
  list(GET parts 0 name)
  list(GET parts 1 op)
  list(GET parts 2 file)
  set(words ${spirv_folder}/${name}.inc)
  add_custom_command(OUTPUT ${words}
    COMMAND ${KEDGE_GLSLC} -fshader-stage=compute --target-env=vulkan1.2 -O ${werror} -DKEDGE_GLSL -DKEDGE_OP_${name}
      -DKEDGE_MATRICES=${KEDGE_MATRICES} -DOP=${op} -I${PROJECT_SOURCE_DIR} -mfmt=num -MD -MF ${words}.d -MT ${words} -o ${words}
      ${PROJECT_SOURCE_DIR}/shaders/${file}.comp
    DEPENDS ${PROJECT_SOURCE_DIR}/shaders/${file}.comp DEPFILE ${words}.d VERBATIM COMMENT "Shader ${name}")
  set(source ${spirv_folder}/${name}.c)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include <stdint.h>
extern const uint32_t kedge__spirv_${name}[], kedge__spirv_words_${name};
const uint32_t kedge__spirv_${name}[] = {
#include \"spirv/${name}.inc\"
};
const uint32_t kedge__spirv_words_${name} = sizeof kedge__spirv_${name} / 4;
")
  set_property(SOURCE ${source} APPEND PROPERTY OBJECT_DEPENDS ${words})
  list(APPEND spirv_sources ${source})
endforeach()
kedge_module(vulkan ${KEDGE_VULKAN} ${spirv_sources} LIBRARIES Vulkan::Vulkan PkgConfig::XXHASH)
target_compile_definitions(kedge-vulkan PRIVATE KEDGE_REAL=float KEDGE_MATRICES=${KEDGE_MATRICES})
target_include_directories(kedge-vulkan PRIVATE ${PROJECT_BINARY_DIR})
set(extensions none NV KHR)
list(GET extensions ${KEDGE_MATRICES} extension)
message(STATUS "Backend vulkan: shaders by ${KEDGE_GLSLC}, matrix units by ${extension}")
