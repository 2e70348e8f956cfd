// Writes the body of a Function, operator by operator.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Worked example, y = 2 x:
//   FunctionBuilder f("Double", "", 18);
//   auto x = f.input("x");
//   f.output("y", f.op("Mul", {x, f.number(2, x)}));
class FunctionBuilder {
 public:
  FunctionBuilder(std::string_view name, std::string_view overload, int opset);

  const std::string& overload() const { return function_.overload; }
  int opset() const { return body_.opset_imports.at(""); }
  ValueId input(std::string_view name);
  // An attribute of the calling node: required, or optional with a default.
  void attribute(const std::string& name) { function_.attributes.push_back(name); }
  void attribute(const std::string& name, Attribute default_value) {
    function_.default_attributes[name] = std::move(default_value);
  }
  void output(std::string_view name, ValueId value);

  // A standard operator with one output.
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs,
             std::map<std::string, Attribute> attributes = {});
  // A standard operator with several outputs.
  std::vector<ValueId> ops(std::string_view op_type, std::vector<ValueId> inputs, size_t outputs,
                           std::map<std::string, Attribute> attributes = {});
  // An attribute of a body's node that stands for the list of integers `name` of the call.
  static Attribute integersReference(std::string_view name);
  // Number attribute `name` of the call as a scalar of the type of `like`.
  ValueId numberAttribute(std::string_view name, ValueId like);
  // An attribute of a body's node that stands for integer attribute `name` of the call.
  static Attribute integerReference(std::string_view name);
  // Integer attribute `name` of the call as a scalar.
  ValueId integerAttribute(std::string_view name);
  ValueId integer(int64_t value);                          // shape []
  ValueId integers(const std::vector<int64_t>& elements);  // shape [n]
  ValueId number(double value, ValueId like);              // shape [], of the type of `like`

  Function finish();

 private:
  ValueId newValue(std::string_view name);
  ValueId constant(Constant constant);

  Function function_;
  Graph body_;
  int temporaries_ = 0;
};

// Bodies by name and overload. Those that live outside functions.cc:
using FunctionBodies = std::map<std::pair<std::string, std::string>, void (*)(FunctionBuilder&)>;
void addAttentionBodies(FunctionBodies& bodies);
void addProjectionBodies(FunctionBodies& bodies);
void addConvolutionBodies(FunctionBodies& bodies);  // convolutions, pools, batch normalisation
void addOptimizerBodies(FunctionBodies& bodies);

}  // namespace pipeshard
