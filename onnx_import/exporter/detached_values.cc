#include "onnx_import/exporter/detached_values.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/stopped_gradient.h"

namespace pipeshard {
namespace {

bool isDetach(const ExportedCall& call) { return call.function.find("aten.detach") != std::string::npos; }

// "detach", "detach_3": how the exporter names such calls.
bool namesDetach(const std::string& name) {
  constexpr std::string_view kName = "detach";
  if (!name.starts_with(kName)) return false;
  return std::all_of(name.begin() + kName.size(), name.end(),
                     [](unsigned char c) { return c == '_' || std::isdigit(c); });
}

class Detaching {
 public:
  void mark(Graph& graph) {
    for (Node& node : graph.nodes) {
      const ExportedCall call = exportedCall(node);
      if (isDetach(call)) {
        known_.insert(call.name);
        if (node.is("Identity") && !stopsGradient(node)) {
          stopGradientAt(node);
          ++stops_;
        }
      }
      for (const std::string& argument : call.arguments) {
        if (namesDetach(argument)) mentioned_.emplace_back(describeNode(node), argument);
      }
      for (auto& [name, attribute] : node.attributes) markInside(attribute);
    }
  }

  // A value of that name is no answer: the optimizer gives an output's name to what the output was a copy of.
  void refuseRemoved() const {
    for (const auto& [node, argument] : mentioned_) {
      if (known_.contains(argument)) continue;
      fail(ErrorCode::kBadModel,
           "{}: it was computed from '{}', a value that the module detaches so that no gradient passes, and "
           "the "
           "exporter's optimizer has removed that. Export the module without it: torch.onnx.export(module, "
           "args, "
           "\"model.onnx\", optimize=False, ...)",
           node, argument);
    }
  }

  int stops() const { return stops_; }

 private:
  void markInside(Attribute& attribute) {
    auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
    if (body == nullptr || *body == nullptr) return;
    auto marked = std::make_shared<Graph>(**body);
    const int before = stops_;
    mark(*marked);
    if (stops_ > before) *body = std::move(marked);
  }

  std::set<std::string> known_;                                 // calls of detach() that are in the file
  std::vector<std::pair<std::string, std::string>> mentioned_;  // by which node; in branches and loops, too
  int stops_ = 0;
};

}  // namespace

int stopAtDetachedValues(Graph& graph) {
  Detaching detaching;
  detaching.mark(graph);
  detaching.refuseRemoved();
  return detaching.stops();
}

}  // namespace pipeshard
