// What the files of exchange forms share: the table, and what a form is told.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sharding/specs/node_emitter.h"
#include "sharding/spmd/exchange_forms.h"

namespace pipeshard {

// One node on one device.
struct FormContext {
  const ExchangeContext& exchange;
  const Node& node;  // of the whole graph
  const FactorRule& rule;
  const Strategy& strategy;
  std::vector<ValueId> inputs;  // local
  NodeEmitter& emit;

  bool hasInput(size_t position) const { return position < inputs.size() && inputs[position].valid(); }
  const Shape& wholeInput(size_t position) const { return exchange.whole.shape(node.inputs[position]); }
  const Shape& wholeOutput(size_t position) const { return exchange.whole.shape(node.outputs[position]); }
  Shard outputShard(size_t position) const;
  // Where the part of any device begins along an axis of such a tensor.
  std::function<int64_t(DeviceId)> startsOf(const ShardingSpec& spec, const Shape& whole, size_t axis) const;
  // Groups of the mesh axes that cut any of the factors; those of one device are left out.
  std::vector<GroupId> groupsOf(const std::vector<int>& factors) const;
};

// The numbers of one tensor axis that is cut, as a text that is the same on all devices:
// NodeEmitter::ofDevice's key.
std::string axisKey(const ShardingSpec& spec, const Shape& whole, size_t axis);

struct Form {
  // What a cut of this factor gives; nullptr: it is none that the form is for.
  const ExchangeForm* (*cut)(const Graph& graph, const Node& node, const FactorRule& rule,
                             int factor) = nullptr;
  void (*emit)(FormContext& context) = nullptr;
};

// Forms keyed by (domain, operator). Filled by explicit calls, no static registration.
class FormTable {
 public:
  void add(std::string_view domain, std::string_view op_type, Form form);
  const Form* find(const std::string& domain, const std::string& op_type) const;  // nullptr: none

 private:
  std::map<std::pair<std::string, std::string>, Form> forms_;
};

void registerGatherForms(FormTable& table);
void registerSoftmaxForms(FormTable& table);
void registerLossForms(FormTable& table);
void registerNormalizationForms(FormTable& table);
void registerReductionForms(FormTable& table);
void registerAttentionForms(FormTable& table);

// Forms of the usual kinds: every output holds the factor or is the same on all devices; the only output is a
// partial sum.
const ExchangeForm* wholeOutputs();
const ExchangeForm* partialOutput();

bool isReal(const Graph& graph, ValueId value);  // float32 or float64
// or int32 or int64: what collectives can add and compare
bool isReducible(const Graph& graph, ValueId value);
// The factor of a tensor's axis if it is its only one, else -1.
int soleFactor(const TensorFactors& tensor, size_t axis);

}  // namespace pipeshard
