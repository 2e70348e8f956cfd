# One function per kind of target, so that warnings, sanitizers and the include root are said once.

find_program(PIPESHARD_CCACHE ccache)
if(PIPESHARD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PIPESHARD_CCACHE})
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
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(pipeshard_flags INTERFACE -Wno-maybe-uninitialized)  # false alarms in <regex> when instrumented
  endif()
endif()

# pipeshard_library(NAME SOURCES a.cc ... PUBLIC lib ... PRIVATE lib ...): a static library and its alias pipeshard::NAME.
function(pipeshard_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(pipeshard_${name} STATIC ${ARG_SOURCES})
  add_library(pipeshard::${name} ALIAS pipeshard_${name})
  set_target_properties(pipeshard_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(pipeshard_${name} PUBLIC pipeshard_flags ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# pipeshard_test(NAME SOURCES a_test.cc ... LIBRARIES lib ...): a GoogleTest program; every TEST becomes a ctest test.
function(pipeshard_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE pipeshard_flags ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE PIPESHARD_SOURCE_DIR="${PROJECT_SOURCE_DIR}" PIPESHARD_BINARY_DIR="${PROJECT_BINARY_DIR}")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT PIPESHARD_PROFILE=off)
endfunction()
