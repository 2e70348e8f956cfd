# Writes OUTPUT (a source that defines what source_version.h declares) with the version and the commit of the sources in SOURCES, when it has
# changed. No commit where there is no git, or where files differ from it.
cmake_minimum_required(VERSION 3.25)
find_package(Git QUIET)
set(commit "")
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCES} rev-parse --show-toplevel HEAD
    OUTPUT_VARIABLE answer RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCES} status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes RESULT_VARIABLE unknown ERROR_QUIET)
  string(REPLACE "\n" ";" answer "${answer}")
  # a folder inside somebody else's repository has no commit of its own
  if(NOT failed AND NOT unknown AND changes STREQUAL "")
    list(GET answer 0 top)
    file(REAL_PATH ${SOURCES} real)
    if(top STREQUAL real)
      list(GET answer 1 commit)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT
"// Made by runtime/identity/source_version.cmake.
#include \"runtime/identity/source_version.h\"

namespace pipeshard {
const char* const kSourceVersion = \"${VERSION}\";
const char* const kSourceCommit = \"${commit}\";
}  // namespace pipeshard
")
