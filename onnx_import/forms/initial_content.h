// What training starts with, as TrainingInfoProtos say: the content of initializers, or what
// `initialization` makes for them. Internal to onnx_import/forms.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/format/training_info.h"
#include "onnx_import/forms/combined_step.h"

namespace pipeshard {

class InitialContent {
 public:
  // Of what the step sets, and what `initialization` sets. Error(kBadModel) for a binding of what is not
  // there.
  InitialContent(const CombinedStep& step, const std::vector<TrainingInfo>& infos);

  // Of an initializer; false where it is not known, as of a file that is not read here.
  bool isZero(const std::string& initializer) const;
  // Of an initializer of one element, if it is known.
  std::optional<double> number(const std::string& initializer) const;
  // The operator of `initialization` that makes its content; "" for none.
  std::string operatorFor(const std::string& initializer) const;

 private:
  void bind(const TrainingInfo& info, const Graph& step);

  struct Content {
    std::optional<Constant> known;
    bool zero = false;
    std::string op_type;
  };
  std::map<std::string, Content> content_;
};

}  // namespace pipeshard
