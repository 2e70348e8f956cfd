#include "sharding/exchange_forms.h"

#include "ir/error.h"

namespace pipeshard {

const ExchangeForm* exchangeForm(const Graph& /*graph*/, const Node& /*node*/, const FactorRule& /*rule*/, int /*factor*/) {
  return nullptr;
}

std::vector<ValueId> emitExchangeForm(GraphBuilder& /*builder*/, const ExchangeContext& /*context*/, const Node& node,
                                      const Strategy& /*strategy*/, const std::vector<ValueId>& /*inputs*/) {
  fail(ErrorCode::kInternal, "{} has no exchange form", describeNode(node));
}

}  // namespace pipeshard
