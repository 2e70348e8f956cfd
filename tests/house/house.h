// The rules of the house, as functions over a tree of sources: each returns its violations, a line each.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace pipeshard::house {

// folder -> folders that its files may include, beside itself. A name stands for its sub-folders too where
// these have no entry of their own.
using Arrows = std::map<std::string, std::set<std::string>>;

// Between rooms, and inside a room between its neighbourhoods (ARCHITECTURE.md).
const Arrows& roomArrows();
const Arrows& neighbourhoodArrows();

// Every quoted #include follows the arrows; no folder with sources is without an entry; none of the entries
// is for a folder that is gone.
std::vector<std::string> forbiddenIncludes(const std::filesystem::path& root, const Arrows& rooms,
                                           const Arrows& neighbourhoods);

// What the last words of a neighbourhood's README, from "May include" on, do not name of its arrows, by the
// end of the path in backquotes (`files/`, `runtime/files`).
std::vector<std::string> unnamedArrows(const std::filesystem::path& root, const Arrows& neighbourhoods);

// Folders (of product, tests and benchmarks) with more than 40 files, READMEs and CMakeLists.txt counted.
std::vector<std::string> crowdedFolders(const std::filesystem::path& root);

// Every source has a header of its name beside it, and reads that one first. Else it must be a part of a
// family or of a class whose header is named in the list.
std::vector<std::string> sourcesWithoutHeader(const std::filesystem::path& root);

// Every public function is declared in the header that is named like its source.
std::vector<std::string> strayDeclarations(const std::filesystem::path& root);

// Folders without a README, with one that does not begin with a heading, or with one of more than a screen
// (70 lines; 35 of a neighbourhood).
std::vector<std::string> missingReadmes(const std::filesystem::path& root);

// Files that READMEs and ARCHITECTURE.md name in backquotes, and that do not exist.
std::vector<std::string> deadReferences(const std::filesystem::path& root);

// Files of more than 500 lines, and lines of more than 110 columns (but raw strings and tables in comments).
std::vector<std::string> longFiles(const std::filesystem::path& root);
std::vector<std::string> longLines(const std::filesystem::path& root);

// Functions of more than 60 lines, from the signature to the closing brace. Tables of data are none
// (functions.h).
std::vector<std::string> longFunctions(const std::filesystem::path& root);

// What a room must not know: protobuf outside onnx_import, the command line and printing in planning.
std::vector<std::string> foreignKnowledge(const std::filesystem::path& root);

}  // namespace pipeshard::house
