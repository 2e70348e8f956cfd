#include "tests/house/house.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <regex>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/text_file.h"
#include "tests/house/functions.h"

namespace pipeshard::house {
namespace {

namespace fs = std::filesystem;

// Where the product's sources lie, and where all sources do.
constexpr std::string_view kProduct[] = {"ir",        "onnx_import", "sharding", "partition",
                                         "transport", "runtime",     "planning", "tools"};
constexpr std::string_view kAll[] = {"ir",      "onnx_import", "sharding", "partition", "transport",
                                     "runtime", "planning",    "tools",    "tests",     "benchmarks"};

bool isSource(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".cc" || extension == ".h" || extension == ".cu" || extension == ".cuh";
}

// Below the folders, by name from the root; sorted.
template <typename Folders>
std::vector<std::string> sourcesOf(const fs::path& root, const Folders& folders) {
  std::vector<std::string> found;
  for (const std::string_view folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.is_regular_file() && isSource(entry.path()))
        found.push_back(fs::relative(entry.path(), root).string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> linesOf(const fs::path& path) {
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The paths in quotes, with whether each is the first.
std::vector<std::string> quotedIncludes(const fs::path& path) {
  constexpr std::string_view kBegin = "#include \"";
  std::vector<std::string> includes;
  for (const std::string& line : linesOf(path)) {
    if (!line.starts_with(kBegin)) continue;
    includes.push_back(line.substr(kBegin.size(), line.find('"', kBegin.size()) - kBegin.size()));
  }
  return includes;
}

std::string folderOf(const std::string& file) { return fs::path(file).parent_path().string(); }

// The longest entry that the folder is, or lies below; "" if none.
std::string entryOf(const Arrows& arrows, const std::string& folder) {
  std::string best;
  for (const auto& [entry, unused] : arrows) {
    if ((folder == entry || folder.starts_with(entry + "/")) && entry.size() > best.size()) best = entry;
  }
  return best;
}

// The whole text of a source without what stands in unnamed namespaces (which clang-format ends with a
// comment).
std::string publicText(const fs::path& path) {
  std::string text;
  bool hidden = false;
  for (const std::string& line : linesOf(path)) {
    if (line == "namespace {") hidden = true;
    if (!hidden) text += line + "\n";
    if (line == "}  // namespace") hidden = false;
  }
  return text;
}

// The position behind the parenthesis that closes the one at `open`.
size_t behindParameters(const std::string& text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')' && --depth == 0) return i + 1;
  }
  return text.size();
}

// Names of the functions that are declared, or defined, at the beginning of a line: neither members nor
// inline.
std::set<std::string> functionNames(const std::string& text, bool definitions) {
  static const std::regex kFunction(
      R"(^(?:\[\[noreturn\]\] )?(?!inline|static|using|return|friend|template|struct|class|enum|namespace|constexpr|#|//)([A-Za-z_][\w:<>,*& ]*[ *&])(\w+)\()");
  std::set<std::string> names;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    std::smatch match;
    if (!line.empty() && line[0] != ' ' && std::regex_search(line, match, kFunction)) {
      const size_t open = begin + static_cast<size_t>(match.length(0)) - 1;
      const size_t stop = text.find_first_of(";{", behindParameters(text, open));
      if (stop != std::string::npos && (text[stop] == '{') == definitions) names.insert(match[2]);
    }
    begin = end + 1;
  }
  return names;
}

// Sources that share a header: the members of one family, each registered by an explicit call, or parts of
// one class. By folder: the header.
const std::map<std::string, std::vector<std::string>>& familyHeaders() {
  static const std::map<std::string, std::vector<std::string>> headers = {
      {"onnx_import/autodiff", {"gradient_rules.h", "function_builder.h", "update.h"}},
      {"onnx_import/lowering", {"lowering_rules.h"}},
      {"onnx_import/prepare", {"evaluate_families.h"}},
      {"partition/emit", {"rank_builder.h"}},
      {"partition/families", {"families.h"}},
      {"runtime", {"cuda_launch.h", "cuda_plans.h"}},  // of kernels, defined where the device is known
      {"runtime/device", {"cuda_error.h", "cuda_loader.h"}},
      {"runtime/execute", {"executor.h", "executor_parts.h"}},
      {"runtime/job", {"coordinator_parts.h", "node_placement_parts.h"}},
      {"runtime/kernels",
       {"base/families.h",
        "activation_grad.h",
        "attention.h",
        "batch_normalization.h",
        "binary_functors.h",
        "cast.h",
        "widening.h",
        "convolution.h",
        "copy_elements.h",
        "data_faults.h",
        "gather.h",
        "loss.h",
        "maker.h",
        "matmul.h",
        "normalization.h",
        "optimizer.h",
        "pad.h",
        "pooling.h",
        "reduce.h",
        "scan.h",
        "scatter.h",
        "softmax.h",
        "square_sum.h",
        "transpose.h",
        "unary_functors.h"}},
      {"sharding/rules", {"rule_builder.h"}},
      {"sharding/spmd", {"form_table.h", "exchange_softmax.h", "local_indices.h"}},
      {"tools", {"commands.h"}},
      {"tools/report", {"report_sections.h"}},
      {"tools/simulation", {"simulation_report.h"}},
      {"transport/gloo", {"gloo_mesh.h"}},
      {"transport/wire", {"wire_mesh.h", "relay_parts.h"}},
  };
  return headers;
}

bool readsFamilyHeader(const fs::path& root, const std::string& file) {
  for (const auto& [folder, headers] : familyHeaders()) {
    if (!folderOf(file).starts_with(folder)) continue;
    for (const std::string& include : quotedIncludes(root / file)) {
      for (const std::string& header : headers) {
        if (include.ends_with("/" + header)) return true;
      }
    }
  }
  return false;
}

std::string headerOf(const std::string& source) { return source.substr(0, source.size() - 2) + "h"; }

// By the header of the source's name, or of its family.
bool isDeclaredFor(const std::string& source, const std::set<std::string>& headers) {
  if (headers.contains(headerOf(source))) return true;
  for (const auto& [folder, family] : familyHeaders()) {
    if (!folderOf(source).starts_with(folder)) continue;
    for (const std::string& header : family) {
      for (const std::string& declaring : headers) {
        if (declaring.starts_with(folder) && declaring.ends_with("/" + header)) return true;
      }
    }
  }
  return false;
}

bool isMain(const std::string& file) { return file.ends_with("/main.cc"); }

}  // namespace

std::vector<std::string> forbiddenIncludes(const fs::path& root, const Arrows& rooms,
                                           const Arrows& neighbourhoods) {
  std::vector<std::string> violations;
  std::set<std::string> seen;
  for (const std::string& file : sourcesOf(root, kProduct)) {
    const std::string from_room = entryOf(rooms, folderOf(file));
    const std::string from = entryOf(neighbourhoods, folderOf(file));
    seen.insert(from);
    if (from_room.empty() || from.empty()) {
      violations.push_back(file + " lies in no room or neighbourhood of tests/house/arrows.cc");
      continue;
    }
    for (const std::string& include : quotedIncludes(root / file)) {
      const std::string to_room = entryOf(rooms, folderOf(include));
      const std::string to = entryOf(neighbourhoods, folderOf(include));
      if (to_room.empty()) {
        violations.push_back(
            fmt::format("{} includes \"{}\", which is in no room: write paths from the root", file, include));
      } else if (from_room != to_room && !rooms.at(from_room).contains(to_room)) {
        violations.push_back(fmt::format("{} (room {}) may not include {}", file, from_room, include));
      } else if (from_room == to_room && from != to && !neighbourhoods.at(from).contains(to)) {
        violations.push_back(fmt::format("{} (neighbourhood {}) may not include {}", file, from, include));
      }
    }
  }
  for (const auto& [entry, unused] : neighbourhoods) {
    if (!seen.contains(entry))
      violations.push_back(entry + " is in tests/house/arrows.cc and has no sources");
  }
  return violations;
}

std::vector<std::string> unnamedArrows(const fs::path& root, const Arrows& neighbourhoods) {
  std::vector<std::string> violations;
  for (const auto& [folder, others] : neighbourhoods) {
    if (folder.find('/') == std::string::npos) continue;  // a room: its README draws the arrows
    const std::string text = fmt::format("{}", fmt::join(linesOf(root / folder / "README.md"), "\n"));
    const size_t begin = text.find("May include");
    if (begin == std::string::npos) continue;
    static const std::regex kFolder(R"(`([\w/]*\w)/?`)");
    std::vector<std::string> named;
    for (auto match =
             std::sregex_iterator(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), kFolder);
         match != std::sregex_iterator(); ++match)
      named.push_back("/" + (*match)[1].str());
    for (const std::string& other : others) {
      const auto is_named = [&other](const std::string& name) { return ("/" + other).ends_with(name); };
      if (std::none_of(named.begin(), named.end(), is_named))
        violations.push_back(fmt::format("{}/README.md does not say that it may include {}", folder, other));
    }
  }
  return violations;
}

std::vector<std::string> crowdedFolders(const fs::path& root) {
  constexpr size_t kMostFiles = 40;
  std::vector<std::string> violations;
  std::map<std::string, size_t> files;
  for (const std::string_view room : kAll) {
    if (!fs::exists(root / room)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (entry.is_regular_file()) ++files[fs::relative(entry.path().parent_path(), root).string()];
    }
  }
  for (const auto& [folder, count] : files) {
    if (count <= kMostFiles || folder.find("golden") != std::string::npos) continue;
    violations.push_back(fmt::format("{} has {} files; expected at most {}", folder, count, kMostFiles));
  }
  return violations;
}

std::vector<std::string> sourcesWithoutHeader(const fs::path& root) {
  std::vector<std::string> violations;
  for (const std::string& file : sourcesOf(root, kProduct)) {
    if (!file.ends_with(".cc") || isMain(file)) continue;
    const std::string header = headerOf(file);
    if (!fs::exists(root / header)) {
      if (!readsFamilyHeader(root, file))
        violations.push_back(fmt::format("{} has no header {}, and is no part of a family", file, header));
      continue;
    }
    const std::vector<std::string> includes = quotedIncludes(root / file);
    if (!includes.empty() && includes.front() != header)
      violations.push_back(fmt::format("{} must include {} first", file, header));
  }
  return violations;
}

std::vector<std::string> strayDeclarations(const fs::path& root) {
  std::map<std::string, std::set<std::string>> declared;  // by function: headers
  const std::vector<std::string> files = sourcesOf(root, kProduct);
  for (const std::string& file : files) {
    if (!file.ends_with(".h")) continue;
    for (const std::string& name : functionNames(publicText(root / file), false)) declared[name].insert(file);
  }
  std::vector<std::string> violations;
  for (const std::string& file : files) {
    if (!file.ends_with(".cc") || isMain(file)) continue;
    for (const std::string& name : functionNames(publicText(root / file), true)) {
      const auto found = declared.find(name);
      if (found != declared.end() && isDeclaredFor(file, found->second)) continue;
      violations.push_back(
          fmt::format("{} defines {}, which {} does not declare{}", file, name, headerOf(file),
                      found == declared.end() ? std::string("; put it into an unnamed namespace")
                                              : fmt::format(" (but {})", fmt::join(found->second, ", "))));
    }
  }
  return violations;
}

std::vector<std::string> missingReadmes(const fs::path& root) {
  constexpr size_t kScreen = 70;
  constexpr size_t kShort = 35;
  std::vector<std::string> violations;
  std::set<std::string> folders = {"tests", "examples", "benchmarks"};
  for (const std::string& file : sourcesOf(root, kProduct)) {
    for (fs::path folder = folderOf(file); !folder.empty(); folder = folder.parent_path())
      folders.insert(folder.string());
  }
  for (const std::string& folder : folders) {
    const fs::path readme = root / folder / "README.md";
    if (!fs::exists(readme)) {
      violations.push_back(folder + " has no README.md");
      continue;
    }
    const std::vector<std::string> text = linesOf(readme);
    if (text.empty() || !text.front().starts_with("# "))
      violations.push_back(folder + "/README.md does not begin with a heading (\"# \")");
    // A room's leads to its neighbourhoods; those of neighbourhoods are short.
    const size_t most = std::count(folder.begin(), folder.end(), '/') > 0 ? kShort : kScreen;
    const size_t lines = text.size();
    if (lines > (folder == "onnx_import/autodiff" || folder == "runtime/kernels" ||
                         folder == "sharding/solver" || folder == "sharding/rules"
                     ? kScreen
                     : most))
      violations.push_back(
          fmt::format("{}/README.md has {} lines; expected at most {}", folder, lines, most));
  }
  return violations;
}

std::vector<std::string> deadReferences(const fs::path& root) {
  static const std::regex kName(R"(`([\w/]+\.(?:h|cc|py|sh|md))`)");
  std::vector<std::string> pages;
  std::vector<std::string> files;
  std::vector<std::string_view> folders(std::begin(kAll), std::end(kAll));
  folders.insert(folders.end(), {"docs", "examples", "cmake"});
  for (const std::string_view folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      files.push_back("/" + fs::relative(entry.path(), root).string());
      if (entry.path().filename() == "README.md") pages.push_back(files.back().substr(1));
    }
  }
  if (fs::exists(root / "ARCHITECTURE.md")) pages.emplace_back("ARCHITECTURE.md");
  std::sort(pages.begin(), pages.end());
  std::vector<std::string> violations;
  for (const std::string& page : pages) {
    for (const std::string& line : linesOf(root / page)) {
      for (auto match = std::sregex_iterator(line.begin(), line.end(), kName);
           match != std::sregex_iterator(); ++match) {
        const std::string name = (*match)[1];
        const bool exists = std::any_of(files.begin(), files.end(),
                                        [&](const std::string& file) { return file.ends_with("/" + name); });
        if (exists || name.find("NAME") != std::string::npos) continue;
        violations.push_back(fmt::format("{} names {}, which does not exist", page, name));
      }
    }
  }
  return violations;
}

std::vector<std::string> longFiles(const fs::path& root) {
  constexpr size_t kMostLines = 500;
  constexpr size_t kMostTestLines = 800;
  std::vector<std::string> violations;
  for (const std::string& file : sourcesOf(root, kAll)) {
    const size_t lines = linesOf(root / file).size();
    const size_t most = file.starts_with("tests/") ? kMostTestLines : kMostLines;
    if (lines > most)
      violations.push_back(fmt::format("{} has {} lines; expected at most {}", file, lines, most));
  }
  return violations;
}

std::vector<std::string> longLines(const fs::path& root) {
  constexpr size_t kMostColumns = 110;
  std::vector<std::string> violations;
  for (const std::string& file : sourcesOf(root, kAll)) {
    const std::vector<std::string> lines = linesOf(root / file);
    bool raw = false;
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string& line = lines[i];
      const bool begins = line.find("R\"") != std::string::npos;
      raw = raw || begins;
      const size_t columns = std::count_if(
          line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
      const bool table = line.find("//   ") != std::string::npos || line.starts_with("// |");
      const bool exempt =
          raw || table || line.starts_with("#include") || line.find("NOLINT") != std::string::npos;
      if (columns > kMostColumns && !exempt)
        violations.push_back(
            fmt::format("{}:{} has {} columns; expected at most {}", file, i + 1, columns, kMostColumns));
      if (raw && line.find(")\"") != std::string::npos) raw = false;
    }
  }
  return violations;
}

std::vector<std::string> longFunctions(const fs::path& root) {
  constexpr size_t kMostLines = 60;
  std::vector<std::string> violations;
  for (const std::string& file : sourcesOf(root, kAll)) {
    for (const FunctionLines& function : functionsOf(requireTextFile((root / file).string()))) {
      const size_t lines = function.last - function.first + 1;
      if (lines > kMostLines)
        violations.push_back(fmt::format("{}:{}: the function has {} lines; expected at most {}", file,
                                         function.first, lines, kMostLines));
    }
  }
  return violations;
}

std::vector<std::string> foreignKnowledge(const fs::path& root) {
  struct Rule {
    std::string_view pattern;
    std::vector<std::string_view> folders;  // where it may stand
    std::string_view why;
    std::string_view ending = "";  // of the files that it is about; "": of all
  };
  const std::vector<Rule> rules = {
      {"#include <onnx/", {"onnx_import/format", "onnx_import/prepare"}, "protobuf ends in onnx_import"},
      {"#include <google/protobuf",
       {"onnx_import/format", "onnx_import/prepare"},
       "protobuf ends in onnx_import"},
      {"#include <CLI/", {"tools"}, "only the command knows a command line"},
      {"fmt::print(", {"tools", "runtime/job/worker.cc"}, "only the command, and a worker that fails, print"},
      {"std::cout", {"tools"}, "only the command prints"},
      {"#include <nlohmann/json.hpp>",
       {"ir", "transport", "runtime", "planning", "tools"},
       "no JSON in algorithms"},
      {"#include <nlohmann/json.hpp>",
       {"transport/control/control_message.h"},
       "a header takes json_fwd.hpp, a source that reads or writes JSON the rest",
       ".h"},
      {"\"pkg.", {"ir/graph/exporter_marks.cc", "ir/graph/weight_role.cc"}, "one reader of exporter marks"},
  };
  std::vector<std::string> violations;
  for (const std::string& file : sourcesOf(root, kProduct)) {
    const std::vector<std::string> lines = linesOf(root / file);
    for (const Rule& rule : rules) {
      const bool allowed = std::any_of(rule.folders.begin(), rule.folders.end(),
                                       [&](std::string_view folder) { return file.starts_with(folder); });
      if (allowed || !file.ends_with(rule.ending)) continue;
      for (size_t i = 0; i < lines.size(); ++i) {
        if (lines[i].find(rule.pattern) != std::string::npos)
          violations.push_back(fmt::format("{}:{}: {} ({})", file, i + 1, rule.pattern, rule.why));
      }
    }
  }
  return violations;
}

}  // namespace pipeshard::house
