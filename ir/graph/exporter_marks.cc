#include "ir/graph/exporter_marks.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>

#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

constexpr std::string_view kStackTrace = "pkg.torch.onnx.stack_trace";

bool isNameCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The name behind the % at `percent`.
std::string nameAt(std::string_view text, size_t percent) {
  size_t end = percent + 1;
  while (end < text.size() && isNameCharacter(text[end])) ++end;
  return std::string(text.substr(percent + 1, end - percent - 1));
}

// The modules that call a node, from the outermost on, and last the name of the call itself: "['', 'head',
// 'linear']".
std::vector<std::string> namesOfScopes(const Node& node) {
  return pythonStrings(metadataOf(node.metadata, "pkg.torch.onnx.name_scopes"));
}

// "transformers.models.gpt2.modeling_gpt2.GPT2Block" -> "GPT2Block".
std::string shortType(const std::string& type) { return type.substr(type.rfind('.') + 1); }

// Of the TorchScript exporter: "/transformer/h.0/attn/MatMul".
std::vector<ModuleScope> scopesOfName(const std::string& name) {
  std::vector<ModuleScope> scopes;
  std::string path;
  for (size_t start = 1, slash = 0; (slash = name.find('/', start)) != std::string::npos; start = slash + 1) {
    path += (path.empty() ? "" : ".") + name.substr(start, slash - start);
    if (slash > start) scopes.push_back({path, ""});
  }
  return scopes;
}

// As torch.export calls the argument of a parameter: "p_fc_weight" of "fc.weight".
std::string argumentOf(std::string_view parameter) {
  std::string argument = "p_";
  for (const char c : parameter)
    argument += isNameCharacter(c) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c))) : '_';
  return argument;
}

}  // namespace

std::string_view metadataOf(const Metadata& metadata, std::string_view key) {
  const auto found =
      std::find_if(metadata.begin(), metadata.end(), [&](const auto& entry) { return entry.first == key; });
  return found == metadata.end() ? std::string_view() : found->second;
}

std::vector<std::string> pythonStrings(std::string_view text) {
  std::vector<std::string> strings;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\'' && text[i] != '"') continue;
    const size_t end = text.find(text[i], i + 1);
    if (end == std::string_view::npos) break;
    strings.emplace_back(text.substr(i + 1, end - i - 1));
    i = end;
  }
  return strings;
}

namespace {

std::vector<std::string_view> signatureLines(const Graph& graph) {
  std::vector<std::string_view> lines;
  std::string_view text = metadataOf(graph.metadata, "pkg.torch.export.ExportedProgram.graph_signature");
  while (!text.empty()) {
    lines.push_back(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(lines.back().size() + 1, text.size()));
  }
  return lines;
}

// Lines "p_fc_weight: PARAMETER target='fc.weight'".
std::vector<SignatureParameter> signatureEntries(const Graph& graph, std::string_view kind_text,
                                                 std::string_view but_with = "\n") {
  std::vector<SignatureParameter> parameters;
  for (const std::string_view line : signatureLines(graph)) {
    const size_t kind = line.find(kind_text);
    if (kind == std::string_view::npos || line.find(but_with) != std::string_view::npos) continue;
    const std::vector<std::string> target = pythonStrings(line.substr(kind + kind_text.size()));
    if (!target.empty()) parameters.push_back({std::string(line.substr(0, kind)), target.front()});
  }
  return parameters;
}

// Of lines "mean: USER_OUTPUT".
std::vector<std::string> namesOfKind(const Graph& graph, std::string_view kind) {
  std::vector<std::string> names;
  for (const std::string_view line : signatureLines(graph)) {
    if (line.ends_with(kind)) names.emplace_back(line.substr(0, line.size() - kind.size()));
  }
  return names;
}

}  // namespace

std::vector<SignatureParameter> signatureParameters(const Graph& graph) {
  return signatureEntries(graph, ": PARAMETER target=");
}

bool tellsParameters(const Graph& graph) {
  return !signatureParameters(graph).empty() ||
         std::ranges::any_of(graph.initializers,
                             [&](const auto& entry) { return isMarkedParameter(graph.value(entry.first)); });
}

std::vector<SignatureParameter> mentionedParameters(const Graph& graph) {
  std::map<std::string, std::string> name_of;  // by argument
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isMarkedParameter(value)) continue;
    const std::string_view argument = metadataOf(value.metadata, "pkg.torch.onnx.original_node_name");
    name_of.emplace(argument.empty() ? argumentOf(value.name) : argument, value.name);
  }
  if (name_of.empty()) return {};
  for (const auto& [id, initializer] : graph.initializers) {
    for (std::string& source : foldedFrom(graph.value(id))) name_of.emplace(argumentOf(source), source);
  }
  std::vector<SignatureParameter> parameters;
  for (const Node& node : graph.nodes) {
    for (const std::string& argument : exportedCall(node).arguments) {
      auto found = name_of.extract(argument);
      if (!found.empty()) parameters.push_back({argument, std::move(found.mapped())});
    }
  }
  return parameters;
}

std::set<std::string> signatureParameterNames(const Graph& graph) {
  std::set<std::string> names;
  for (SignatureParameter& parameter : signatureParameters(graph)) names.insert(std::move(parameter.name));
  return names;
}

std::vector<std::string> signatureInputs(const Graph& graph) { return namesOfKind(graph, ": USER_INPUT"); }

std::vector<std::string> signatureOutputs(const Graph& graph) { return namesOfKind(graph, ": USER_OUTPUT"); }

std::vector<std::string> mutatedBuffers(const Graph& graph) {
  std::vector<std::string> names;
  for (SignatureParameter& buffer : signatureEntries(graph, ": BUFFER_MUTATION target="))
    names.push_back(std::move(buffer.name));
  return names;
}

std::vector<SignatureParameter> signatureBuffers(const Graph& graph, bool persistent_only) {
  return signatureEntries(graph, ": BUFFER target=", persistent_only ? " persistent=False" : "\n");
}

ExportedCall exportedCall(const Node& node) {
  constexpr std::string_view kTarget = "[target=";
  const std::string_view text = metadataOf(node.metadata, "pkg.torch.onnx.fx_node");
  ExportedCall call;
  const size_t target = text.find(kTarget);
  if (text.empty() || text.front() != '%' || target == std::string_view::npos) return call;
  call.name = nameAt(text, 0);
  constexpr std::string_view kUsers = "[num_users=";
  if (const size_t users = text.find(kUsers); users < target)
    call.users = std::atoi(std::string(text.substr(users + kUsers.size(), 9)).c_str());
  const std::vector<std::string> scopes = namesOfScopes(node);
  if (scopes.size() > 1) call.module = scopes[scopes.size() - 2];
  const std::string_view function = text.substr(target + kTarget.size());
  call.function = function.substr(0, function.find(']'));
  for (size_t percent = text.find('%', target); percent != std::string_view::npos;
       percent = text.find('%', percent + 1))
    call.arguments.push_back(nameAt(text, percent));
  constexpr std::string_view kArguments = "(args = (";
  const size_t begin = text.find(kArguments, target), end = text.rfind("), kwargs");
  if (begin != std::string_view::npos && end != std::string_view::npos && end > begin)
    call.text = text.substr(begin + kArguments.size(), end - begin - kArguments.size());
  return call;
}

bool isCallOf(const ExportedCall& call, std::string_view function) {
  return call.function.find(function) != std::string::npos;
}

std::string_view callKind(std::string_view name) {
  size_t end = name.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1])) != 0) --end;
  return end > 1 && end < name.size() && name[end - 1] == '_' ? name.substr(0, end - 1) : name;
}

std::vector<std::string> argumentTexts(const ExportedCall& call) {
  std::vector<std::string> arguments(1);
  int depth = 0;
  for (const char c : call.text) {
    depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      arguments.emplace_back();
    } else if (c != ' ' || depth > 0) {
      arguments.back() += c;
    }
  }
  return arguments;
}

bool hasMarkedNodes(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const Node& node) {
    return std::ranges::any_of(node.metadata,
                               [](const auto& entry) { return entry.first.starts_with("pkg.torch.onnx."); });
  });
}

std::vector<ModuleScope> moduleScopes(const Node& node) {
  constexpr std::string_view kNoModule = "_empty_nn_module_stack_from_metadata_hook";
  std::vector<std::string> paths = namesOfScopes(node);
  if (paths.empty()) return node.name.starts_with('/') ? scopesOfName(node.name) : std::vector<ModuleScope>{};
  const std::vector<std::string> types =
      pythonStrings(metadataOf(node.metadata, "pkg.torch.onnx.class_hierarchy"));
  paths.pop_back();  // the operator itself
  std::vector<ModuleScope> scopes;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].empty() && paths[i] != kNoModule)
      scopes.push_back({paths[i], i < types.size() ? shortType(types[i]) : ""});
  }
  return scopes;
}

std::string modulePath(const std::string& node) {
  const size_t end = node.rfind('/');
  if (node.empty() || node.front() != '/' || end == 0) return "";
  std::string path, last;
  for (size_t start = 1; start < end;) {
    const size_t stop = std::min(node.find('/', start), end);
    const std::string part = node.substr(start, stop - start);
    if (!last.empty() && part.starts_with(last + ".")) path.resize(path.size() - last.size());
    if (!path.empty() && path.back() != '.') path += '.';
    path += part;
    last = part;
    start = stop + 1;
  }
  return path;
}

std::pair<std::string, std::string> differingModules(const std::string& a, const std::string& b) {
  size_t end = 0;  // characters that both end with, whole names alone
  for (size_t n = 1; n <= std::min(a.size(), b.size()) && a[a.size() - n] == b[b.size() - n]; ++n) {
    const auto whole = [&](const std::string& s) { return n == s.size() || s[s.size() - n - 1] == '.'; };
    if (whole(a) && whole(b)) end = n;
  }
  const auto outer = [&](const std::string& path) {
    return path.size() > end ? path.substr(0, path.size() - end - (end > 0 ? 1 : 0)) : "";
  };
  return {outer(a), outer(b)};
}

TracedRegion tracedRegion(const Node& node) {
  constexpr std::string_view kBegin = "File \"";
  const std::string_view text = metadataOf(node.metadata, kStackTrace);
  TracedRegion region;
  if (!text.starts_with(kBegin) || !text.substr(kBegin.size()).starts_with("<eval_with_key>")) return region;
  const std::string_view name = text.substr(kBegin.size());
  region.name = name.substr(0, name.find('"'));
  const auto isDigit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t at = text.find("arg"); at != std::string_view::npos; at = text.find("arg", at + 1)) {
    size_t end = at + 3;
    while (end < text.size() && isDigit(text[end])) ++end;
    const bool numbered = end > at + 3 && end + 1 < text.size() && text[end] == '_' && isDigit(text[end + 1]);
    region.numbers_arguments = region.numbers_arguments || numbered;
  }
  return region;
}

std::string lastLineOfCode(const Node& node) {
  const std::string_view text = metadataOf(node.metadata, kStackTrace);
  return std::string(text.substr(text.rfind('\n') + 1));  // all of it where it has one line
}

std::vector<CodeLine> linesOfCode(const Node& node) {
  constexpr std::string_view kFile = "File \"";
  std::vector<CodeLine> lines;
  std::string_view text = metadataOf(node.metadata, kStackTrace);
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (line.starts_with(kFile)) {
      line.remove_prefix(kFile.size());
      lines.push_back({std::string(line.substr(0, line.find('"'))), ""});
    } else if (!lines.empty()) {
      lines.back().code += line;
    }
  }
  return lines;
}

std::vector<std::string> foldedFrom(const Value& value) {
  return pythonStrings(metadataOf(value.metadata, "pkg.onnxscript.optimizer.folded_from"));
}

bool madeByRule(const Node& node, std::string_view rule) {
  return metadataOf(node.metadata, "pkg.onnxscript.rewriter.rule_name").find(rule) != std::string_view::npos;
}

}  // namespace pipeshard
