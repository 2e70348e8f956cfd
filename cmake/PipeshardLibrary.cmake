# One function per kind of target, so that warnings, sanitizers and the include root are said once.

find_program(PIPESHARD_CCACHE ccache)
if(PIPESHARD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache must overlook to keep objects that were made with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${PIPESHARD_CCACHE})
endif()

add_library(pipeshard_flags INTERFACE)
target_include_directories(pipeshard_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(pipeshard_flags INTERFACE -Wall -Wextra)
if(PIPESHARD_WARNINGS_AS_ERRORS)
  target_compile_options(pipeshard_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(pipeshard_flags INTERFACE -Wno-restrict)  # false alarms on string + string at -O3 (GCC bug 105651)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(pipeshard_flags INTERFACE -Wno-pass-failed)  # a loop marked simd that stayed scalar is slower, not wrong
endif()
if(PIPESHARD_SANITIZE)
  target_compile_options(pipeshard_flags INTERFACE -fsanitize=${PIPESHARD_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(pipeshard_flags INTERFACE -fsanitize=${PIPESHARD_SANITIZE})
  target_compile_definitions(pipeshard_flags INTERFACE PIPESHARD_SANITIZERS="${PIPESHARD_SANITIZE}")  # tests/sanitizers.h
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # False alarms in <regex> when instrumented, and on string + "text" at -O1.
    target_compile_options(pipeshard_flags INTERFACE -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow
                                                     -Wno-stringop-overread)
    if(PIPESHARD_SANITIZE MATCHES undefined)
      # Half of what the build takes. Null pointers end with SIGSEGV as well, and the fuzzer (clang) has all three.
      target_compile_options(pipeshard_flags INTERFACE -fno-sanitize=null,alignment,vptr)
    endif()
  endif()
endif()

# One precompiled header for all: so everything is position-independent, and optimised alike but for the targets
# that say pipeshard_hot_loops.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
option(PIPESHARD_PRECOMPILE "Compile the headers of cmake/precompiled.h once" ON)
function(pipeshard_precompile target header libraries)
  # Written anew only when it changes: else each run of CMake would compile everything again.
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc CONTENT "// Carries the precompiled header.\n")
  add_library(${target} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc)
  target_link_libraries(${target} PRIVATE pipeshard_flags ${libraries})
  if(PIPESHARD_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${header})
  endif()
endfunction()
function(pipeshard_reuse_precompiled target from)
  if(PIPESHARD_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()
pipeshard_precompile(pipeshard_precompiled ${PROJECT_SOURCE_DIR}/cmake/precompiled.h fmt::fmt)

# For kernels and the solver, where the time of a step and of a plan goes; without the precompiled header, which is
# for other options.
function(pipeshard_hot_loops target)
  if(PIPESHARD_SANITIZE)  # a folder of kernels takes 129 s of the processor at -O3, and nobody measures them
    target_compile_options(${target} PRIVATE ${ARGN})
  else()
    target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O3> ${ARGN})
  endif()
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()

# Unity builds: the sources of a folder are compiled together, at most so many at a time, which halves the processor
# time of a cold build (templates and headers are read once). So no two sources of a folder may define the same name,
# not even in unnamed namespaces. OFF: a changed source alone is compiled again, and tools see every source.
option(PIPESHARD_UNITY "Compile the sources of a folder together" ON)
set(PIPESHARD_UNITY_SIZE 8)
if(PIPESHARD_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(pipeshard_flags INTERFACE -Wno-subobject-linkage)  # takes the sources for headers
endif()
function(pipeshard_unity target)
  if(NOT PIPESHARD_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source ${ARGN})
    get_filename_component(folder ${source} DIRECTORY)
    string(MAKE_C_IDENTIFIER "in_${folder}" group)
    math(EXPR place "${${group}_count} + 0")
    math(EXPR ${group}_count "${place} + 1")
    math(EXPR part "${place} / ${PIPESHARD_UNITY_SIZE}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group}_${part})
  endforeach()
endfunction()

# pipeshard_library(NAME SOURCES a.cc ... PUBLIC lib ... PRIVATE lib ...): a static library and its alias pipeshard::NAME.
function(pipeshard_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(pipeshard_${name} STATIC ${ARG_SOURCES})
  add_library(pipeshard::${name} ALIAS pipeshard_${name})
  target_link_libraries(pipeshard_${name} PUBLIC pipeshard_flags ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  pipeshard_reuse_precompiled(pipeshard_${name} pipeshard_precompiled)
  pipeshard_unity(pipeshard_${name} ${ARG_SOURCES})
endfunction()

# A program that tools/gpu_bundle.sh takes to other machines: it and its libraries are looked for beside it first. RPATH, which is
# that of its libraries' libraries too, and not RUNPATH.
function(pipeshard_relocatable target)
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH "$ORIGIN/../lib")
endfunction()

if(PIPESHARD_BUILD_TESTS)
  # What tests do themselves is little; compiling them is much.
  set(PIPESHARD_TEST_FLAGS $<$<CONFIG:RelWithDebInfo>:-O1> -fPIC)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # False alarms on string + "text" at -O1.
    list(APPEND PIPESHARD_TEST_FLAGS -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
  pipeshard_precompile(pipeshard_precompiled_tests ${PROJECT_SOURCE_DIR}/cmake/precompiled_tests.h
                       "fmt::fmt;GTest::gtest;GTest::gmock")
  target_compile_options(pipeshard_precompiled_tests PRIVATE ${PIPESHARD_TEST_FLAGS})
endif()

# pipeshard_test(NAME SOURCES a_test.cc ... LIBRARIES lib ... [ON_STANDIN] [PREFIX p]): a GoogleTest program; every TEST becomes
# a ctest test, its name behind the prefix. ON_STANDIN: the CUDA module is there, on the stand-in of NVIDIA's libraries (tests/standin).
function(pipeshard_test name)
  cmake_parse_arguments(ARG "ON_STANDIN" "TIMEOUT;PREFIX" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(PIPESHARD_SANITIZE)  # many times slower
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE pipeshard_flags ${ARG_LIBRARIES} fmt::fmt GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${PIPESHARD_TEST_FLAGS})
  target_compile_definitions(${name} PRIVATE PIPESHARD_SOURCE_DIR="${PROJECT_SOURCE_DIR}" PIPESHARD_BINARY_DIR="${PROJECT_BINARY_DIR}")
  pipeshard_reuse_precompiled(${name} pipeshard_precompiled_tests)
  if(ARG_ON_STANDIN)  # by env: the discovery of tests takes one variable as a property, not several
    set_target_properties(${name} PROPERTIES CROSSCOMPILING_EMULATOR
      "/usr/bin/env;LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/tests/standin;STANDIN_TWINS=${PROJECT_BINARY_DIR}/tests/standin/libstandin_twin.so;PIPESHARD_CUDA_MODULE=${PROJECT_BINARY_DIR}/tools/pipeshard_cuda.so")
    pipeshard_relocatable(${name})
    add_dependencies(${name} pipeshard_cuda standin_cudart standin_cublaslt standin_twin)
    if(PIPESHARD_NCCL_INCLUDE_DIR)
      add_dependencies(${name} standin_nccl)
    endif()
    if(PIPESHARD_CUDNN_INCLUDE_DIR)
      add_dependencies(${name} standin_cudnn)
    endif()
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT PIPESHARD_PROFILE=off)
endfunction()
