// Attention and rotary embeddings of ONNX Runtime (domain com.microsoft), as training sees them: whole
// sequences, without keys and values of an earlier call.
#include <algorithm>
#include <numeric>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"
#include "onnx_import/lowering/transformer_steps.h"

namespace pipeshard {
namespace {

// ---- what these operators have in common

// A cache may be there with no positions in it.
void refuseCache(const LoweringContext& c, size_t position) {
  if (!c.hasInput(position) || elementCount(c.shape(c.input(position))) == 0) return;
  c.refuse(fmt::format("its input {} has keys or values of an earlier call", position));
}

void refuseInput(const LoweringContext& c, size_t position, const char* what) {
  if (c.hasInput(position)) c.refuse(fmt::format("its input {} {}", position, what));
}

void refuseAttribute(const LoweringContext& c, const char* name, int64_t otherwise = 0) {
  const int64_t number = c.node().intAttribute(name, otherwise);
  if (number != otherwise) c.refuse(fmt::format("its attribute {} is {}", name, number));
}

int64_t headCount(const LoweringContext& c, const char* name = "num_heads") {
  const int64_t heads = c.node().intAttribute(name, 0);
  if (heads <= 0) c.refuse(fmt::format("its attribute {} is {}", name, heads));
  return heads;
}

// 0 for a key that counts, else mask_filter_value: what is added to the scores. The mask has
//   [batch, keys], [batch, queries, keys]   more than 0 where a key counts
//   [batch]                                 how many do, from the first on
//   [2 * batch]                             the same, then at which the first is
//   [3 * batch + 2]                         the same as [batch], then what packed batches need
ValueId keyMask(LoweringContext& c, size_t position, int64_t batch, int64_t keys) {
  const ValueId mask = c.input(position);
  const Shape shape = c.shape(mask);
  const DataType type = c.type(c.input(0));
  ValueId seen;
  if (shape.size() == 1 && (shape[0] == batch || shape[0] == 2 * batch || shape[0] == 3 * batch + 2)) {
    const Shape one_each{batch, 1, 1, 1};
    seen = keysBefore(c, c.reshape(c.slice(mask, 0, 0, batch), one_each), keys);
    if (shape[0] == 2 * batch) {
      const ValueId first = c.reshape(c.slice(mask, 0, batch, 2 * batch), one_each);
      seen = c.binary("And", seen, c.unary("Not", keysBefore(c, first, keys)));
    }
  } else if ((shape.size() == 2 || shape.size() == 3) && shape[0] == batch && shape.back() == keys) {
    const ValueId above = c.compare("Greater", mask, c.scalar(c.type(mask), 0));
    seen = c.unsqueeze(above, shape.size() == 2 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1});
  } else {
    c.refuse(fmt::format("its mask is {} for {} keys in a batch of {}", shapeToString(shape), keys, batch));
  }
  const float filter = c.node().floatAttribute("mask_filter_value", -10000);
  return c.where(seen, c.scalar(type, 0), c.scalar(type, filter));
}

double scaleOf(const LoweringContext& c) { return c.node().floatAttribute("scale", 0); }

// A bias of several projections, [sum of their sizes], as that of each; invalid where there is none.
std::vector<ValueId> splitBias(LoweringContext& c, size_t position, const std::vector<int64_t>& sizes) {
  std::vector<ValueId> parts(sizes.size());
  if (!c.hasInput(position)) return parts;
  const Shape shape = c.shape(c.input(position));
  const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (shape != Shape{all}) c.refuse(fmt::format("its bias is {}; expected [{}]", shapeToString(shape), all));
  int64_t from = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts[i] = c.slice(c.input(position), 0, from, from + sizes[i]);
    from += sizes[i];
  }
  return parts;
}

ValueId plus(LoweringContext& c, ValueId x, ValueId bias) {
  return bias.valid() ? c.binary("Add", x, bias) : x;
}

// ---- Attention: projections of one input by one matrix

std::vector<int64_t> projectionSizes(const LoweringContext& c) {
  const int64_t all = c.shape(c.input(1))[1];
  const std::vector<int64_t> sizes = c.node().intsAttribute("qkv_hidden_sizes", {all / 3, all / 3, all / 3});
  const bool fits = sizes.size() == 3 && sizes[0] == sizes[1] && 2 * sizes[0] + sizes[2] == all;
  if (!fits || sizes[0] <= 0 || sizes[2] <= 0)
    c.refuse(fmt::format("its weights are {}, which are no three projections",
                         shapeToString(c.shape(c.input(1)))));
  return sizes;
}

void lowerAttention(LoweringContext& c) {
  refuseCache(c, 4);
  refuseInput(c, 6, "says how long a cache is");
  refuseAttribute(c, "do_rotary");
  refuseAttribute(c, "past_present_share_buffer");
  const ValueId x = c.input(0);
  const Shape shape = c.shape(x);
  if (shape.size() != 3 || c.rank(c.input(1)) != 2) c.refuse("its input or its weights have another rank");
  const int64_t number = headCount(c);
  const std::vector<int64_t> sizes = projectionSizes(c);
  const ValueId projected = plus(c, c.matMul(x, c.input(1)), c.hasInput(2) ? c.input(2) : ValueId());
  const auto part = [&](int64_t from, int64_t size) {
    return splitHeads(c, c.slice(projected, 2, from, from + size), number);
  };
  AttentionHeads heads{
      .query = part(0, sizes[0]), .key = part(sizes[0], sizes[1]), .value = part(2 * sizes[0], sizes[2])};
  heads.scale = scaleOf(c);
  if (c.hasInput(3)) heads.added.push_back(keyMask(c, 3, shape[0], shape[1]));
  if (c.hasInput(5)) heads.added.push_back(c.input(5));
  if (c.node().intAttribute("unidirectional", 0) != 0) heads.seen = causalKeys(c, shape[1]);
  c.give(0, joinHeads(c, attend(c, heads)));
  if (c.hasOutput(1)) c.give(1, c.concat({c.unsqueeze(heads.key, {0}), c.unsqueeze(heads.value, {0})}, 0));
}

// ---- MultiHeadAttention: projected already

// Element `index` of axis 3 of [batch, positions, heads, parts, size], as [batch, positions, heads * size].
ValueId packedPart(LoweringContext& c, ValueId packed, int64_t index) {
  const Shape shape = c.shape(packed);
  return c.reshape(c.slice(packed, 3, index, index + 1), {shape[0], shape[1], shape[2] * shape[4]});
}

struct Projections {
  ValueId query, key, value;  // [batch, positions, heads * size]
};

Projections unpacked(LoweringContext& c, int64_t heads) {
  const ValueId query = c.input(0);
  const auto isPacked = [&](ValueId x, int64_t parts) {
    return c.rank(x) == 5 && c.shape(x)[2] == heads && c.shape(x)[3] == parts;
  };
  if (!c.hasInput(1) && !c.hasInput(2)) {
    if (!isPacked(query, 3))
      c.refuse(fmt::format("its query without a key is {}", shapeToString(c.shape(query))));
    return {packedPart(c, query, 0), packedPart(c, query, 1), packedPart(c, query, 2)};
  }
  if (!c.hasInput(2)) {
    if (!isPacked(c.input(1), 2))
      c.refuse(fmt::format("its key without a value is {}", shapeToString(c.shape(c.input(1)))));
    return {query, packedPart(c, c.input(1), 0), packedPart(c, c.input(1), 1)};
  }
  return {query, c.input(1), c.input(2)};
}

// Keys and values of four axes are heads already, and have their bias.
AttentionHeads projectedHeads(LoweringContext& c) {
  const int64_t number = headCount(c);
  const Projections x = unpacked(c, number);
  if (c.rank(x.query) != 3) c.refuse(fmt::format("its query is {}", shapeToString(c.shape(x.query))));
  const bool split = c.rank(x.key) == 4;
  if (c.rank(x.key) != c.rank(x.value) || (!split && c.rank(x.key) != 3))
    c.refuse(fmt::format("its key is {} and its value {}", shapeToString(c.shape(x.key)),
                         shapeToString(c.shape(x.value))));
  const int64_t size = c.shape(x.query)[2];
  const int64_t value_size = split ? number * c.shape(x.value)[3] : c.shape(x.value)[2];
  const std::vector<ValueId> bias = splitBias(c, 3, {size, size, value_size});
  AttentionHeads heads{
      .query = splitHeads(c, plus(c, x.query, bias[0]), number), .key = x.key, .value = x.value};
  if (!split) {
    heads.key = splitHeads(c, plus(c, x.key, bias[1]), number);
    heads.value = splitHeads(c, plus(c, x.value, bias[2]), number);
  }
  const Shape query = c.shape(heads.query), key = c.shape(heads.key), value = c.shape(heads.value);
  if (key != Shape{query[0], query[1], key[2], query[3]} || value != Shape{key[0], key[1], key[2], value[3]})
    c.refuse(fmt::format("its heads do not fit: query {}, key {}, value {}", shapeToString(query),
                         shapeToString(key), shapeToString(value)));
  return heads;
}

void lowerMultiHeadAttention(LoweringContext& c) {
  refuseCache(c, 6);
  refuseCache(c, 7);
  refuseInput(c, 8, "says how long a cache is");
  refuseInput(c, 9, "is of a beam search");
  if (c.hasOutput(3)) c.refuse("it gives its scores");
  AttentionHeads heads = projectedHeads(c);
  const int64_t queries = c.shape(heads.query)[2];
  const int64_t keys = c.shape(heads.key)[2];
  heads.scale = scaleOf(c);
  if (c.hasInput(4)) heads.added.push_back(keyMask(c, 4, c.shape(heads.query)[0], keys));
  if (c.hasInput(5)) heads.added.push_back(c.input(5));
  if (c.node().intAttribute("unidirectional", 0) != 0) {
    if (queries != keys)
      c.refuse(fmt::format("it is unidirectional, with {} queries and {} keys", queries, keys));
    heads.seen = causalKeys(c, keys);
  }
  c.give(0, joinHeads(c, attend(c, heads)));
  if (c.hasOutput(1)) c.give(1, heads.key);
  if (c.hasOutput(2)) c.give(2, heads.value);
}

// ---- rotary embeddings

// The row of a table of cosines or sines, [.., pairs], for each position: [batch or 1, positions, 1, pairs].
// The ids of positions are [batch, positions], or [1]: that of the first, and the others follow.
ValueId rowsAt(LoweringContext& c, size_t table, ValueId ids, int64_t positions) {
  const ValueId rows = c.input(table);
  if (c.rank(rows) != 2) c.refuse(fmt::format("its input {} is no matrix", table));
  c.neverTrain(table);
  if (c.rank(ids) == 1 && c.shape(ids)[0] == 1) {
    c.requireTable({positions});
    std::vector<double> steps;
    for (int64_t i = 0; i < positions; ++i) steps.push_back(static_cast<double>(i));
    ids = c.binary("Add", c.numbers(c.type(ids), {1, positions}, steps), ids);
  }
  Shape shape = c.shape(ids);
  if (shape.size() != 2 || shape[1] != positions)
    c.refuse(fmt::format("its positions are {}", shapeToString(shape)));
  shape.push_back(c.shape(rows)[1]);
  const ValueId found = c.op("Gather", {rows, ids}, c.type(rows), shape, {{"axis", int64_t{0}}});
  return c.unsqueeze(found, {2});
}

// [batch, positions, hidden], or [batch, heads, positions, size]. ONNX Runtime does not look at `scale`.
void lowerRotaryEmbedding(LoweringContext& c) {
  refuseAttribute(c, "is_packed_batching");
  const ValueId x = c.input(0);
  const Shape shape = c.shape(x);
  const bool split = shape.size() == 4;
  if (!split && shape.size() != 3) c.refuse(fmt::format("its input is {}", shapeToString(shape)));
  const int64_t positions = shape[split ? 2 : 1];
  ValueId cos = rowsAt(c, 2, c.input(1), positions);
  ValueId sin = rowsAt(c, 3, c.input(1), positions);
  const int64_t pairs = c.shape(cos).back();
  const int64_t rotary = c.node().intAttribute("rotary_embedding_dim", 0);
  const int64_t size = split ? shape[3] : rotary == 0 ? 2 * pairs : shape[2] / headCount(c);
  if ((rotary != 0 && rotary != 2 * pairs) || size == 0 || shape.back() % size != 0)
    c.refuse(fmt::format("its tables have {} pairs; its input is {}, its rotary_embedding_dim {}", pairs,
                         shapeToString(shape), rotary));
  const bool interleaved = c.node().intAttribute("interleaved", 0) != 0;
  if (split) {
    cos = c.transpose(cos, {0, 2, 1, 3});
    sin = c.transpose(sin, {0, 2, 1, 3});
    return c.give(0, rotated(c, x, cos, sin, interleaved));
  }
  const ValueId heads = c.reshape(x, {shape[0], positions, shape[2] / size, size});
  c.give(0, c.reshape(rotated(c, heads, cos, sin, interleaved), shape));
}

// ---- GroupQueryAttention: several heads of queries have one of keys and values

// [batch, heads, positions, size] with each head `times` times.
ValueId repeatedHeads(LoweringContext& c, ValueId x, int64_t times) {
  if (times == 1) return x;
  Shape shape = c.shape(x);
  const Shape repeated{shape[0], shape[1], times, shape[2], shape[3]};
  shape[1] *= times;
  return c.reshape(c.expand(c.unsqueeze(x, {2}), repeated), shape);
}

void refuseUnsupportedGroups(const LoweringContext& c) {
  refuseCache(c, 3);
  refuseCache(c, 4);
  refuseInput(c, 12, "is of a quantized cache");
  refuseInput(c, 13, "is of a quantized cache");
  refuseInput(c, 14, "normalises the heads of the query");
  refuseInput(c, 15, "normalises the heads of the key");
  refuseInput(c, 16, "says how long queries are");
  refuseAttribute(c, "sliding_window_cache");
  if (c.hasOutput(3)) c.refuse("it gives its scores");
}

// Rows of a table for the positions of a query, broadcasting with heads. Of given ids the first counts.
ValueId promptRows(LoweringContext& c, size_t table, int64_t positions) {
  if (!c.hasInput(9)) {
    const Shape shape = c.shape(c.input(table));
    if (shape.size() != 2 || shape[0] < positions)
      c.refuse(fmt::format("its input {} is {} for {} positions", table, shapeToString(shape), positions));
    c.neverTrain(table);
    return c.slice(c.input(table), 0, 0, positions);
  }
  const ValueId ids = c.input(9);
  const ValueId first = c.slice(c.reshape(ids, {elementCount(c.shape(ids))}), 0, 0, 1);
  const ValueId rows = rowsAt(c, table, first, positions);
  return c.squeeze(c.squeeze(rows, 2), 0);
}

// Query, key and value, in one tensor or in three; turned, where that is asked for.
AttentionHeads groupedHeads(LoweringContext& c) {
  const int64_t number = headCount(c);
  const int64_t groups = headCount(c, "kv_num_heads");
  const ValueId query = c.input(0);
  const Shape shape = c.shape(query);
  const bool packed = !c.hasInput(1) && !c.hasInput(2);
  const int64_t parts = packed ? number + 2 * groups : number;
  if (shape.size() != 3 || number % groups != 0 || shape[2] % parts != 0)
    c.refuse(fmt::format("its query is {} for {} heads in {} groups", shapeToString(shape), number, groups));
  const int64_t size = shape[2] / parts;
  AttentionHeads heads;
  if (packed) {
    const ValueId all = splitHeads(c, query, parts);
    heads.query = c.slice(all, 1, 0, number);
    heads.key = c.slice(all, 1, number, number + groups);
    heads.value = c.slice(all, 1, number + groups, parts);
  } else {
    heads.query = splitHeads(c, query, number);
    heads.key = splitHeads(c, c.input(1), groups);
    heads.value = splitHeads(c, c.input(2), groups);
  }
  for (ValueId x : {heads.key, heads.value}) {
    if (c.shape(x) != Shape{shape[0], groups, shape[1], size})
      c.refuse(fmt::format("its keys or values are {} as heads; expected {}", shapeToString(c.shape(x)),
                           shapeToString({shape[0], groups, shape[1], size})));
  }
  if (c.node().intAttribute("do_rotary", 0) == 0) return heads;
  const bool interleaved = c.node().intAttribute("rotary_interleaved", 0) != 0;
  const ValueId cos = promptRows(c, 7, shape[1]);
  const ValueId sin = promptRows(c, 8, shape[1]);
  heads.query = rotated(c, heads.query, cos, sin, interleaved);
  heads.key = rotated(c, heads.key, cos, sin, interleaved);
  return heads;
}

// Without a cache, query i is at position i, and sees the keys up to its own that its sequence has, or all it
// has. (What comes behind a sequence's end is nobody's result.)
ValueId groupedKeys(LoweringContext& c, int64_t positions) {
  const int64_t window = c.node().intAttribute("local_window_size", -1);
  const bool causal = c.node().intAttribute("causal", 1) != 0;
  if (window == 0 || (!causal && window > 0))
    c.refuse(fmt::format("its local_window_size is {}, causal {}", window, int{causal}));
  const ValueId last = c.input(5);  // of every sequence
  const int64_t batch = c.shape(c.input(0))[0];
  if (elementCount(c.shape(last)) != batch)
    c.refuse(fmt::format("its seqlens_k are {} for a batch of {}", shapeToString(c.shape(last)), batch));
  const bool total_known = c.hasInput(6) && c.isKnown(6);
  if (total_known && *c.constantIntegers(6) != std::vector<int64_t>{positions})
    c.refuse(fmt::format("its total_sequence_length is not {}, that of its query", positions));
  bool whole = false;
  if (c.isKnown(5)) {
    const std::vector<int64_t> known = *c.constantIntegers(5);
    whole = std::all_of(known.begin(), known.end(), [&](int64_t index) { return index == positions - 1; });
  }
  ValueId seen;
  if (causal) seen = causalKeys(c, positions, window);
  if (whole) return seen;
  const ValueId lengths = c.addNumber(c.cast(last, DataType::kInt64), 1);
  const ValueId there = keysBefore(c, c.reshape(lengths, {batch, 1, 1, 1}), positions);
  return causal ? c.binary("And", seen, there) : there;
}

void lowerGroupQueryAttention(LoweringContext& c) {
  refuseUnsupportedGroups(c);
  AttentionHeads heads = groupedHeads(c);
  const int64_t number = c.shape(heads.query)[1];
  if (c.hasOutput(1)) c.give(1, heads.key);
  if (c.hasOutput(2)) c.give(2, heads.value);
  const int64_t sharing = number / c.shape(heads.key)[1];
  heads.key = repeatedHeads(c, heads.key, sharing);
  heads.value = repeatedHeads(c, heads.value, sharing);
  heads.scale = scaleOf(c);
  heads.softcap = c.node().floatAttribute("softcap", 0);
  if (c.hasInput(10)) heads.added.push_back(c.input(10));
  heads.seen = groupedKeys(c, c.shape(heads.query)[2]);
  if (c.hasInput(11)) {
    heads.sink = c.reshape(c.input(11), {1, number, 1, 1});
  } else if (c.node().intAttribute("smooth_softmax", -1) > 0) {
    heads.sink = c.reshape(c.scalar(c.type(heads.query), 0), {1, 1, 1, 1});
  }
  c.give(0, joinHeads(c, attend(c, heads)));
}

}  // namespace

void addMicrosoftAttentionLowerings(LoweringRules& rules) {
  const auto add = [&](const char* op_type, LoweringRule::Apply apply) {
    rules[{"com.microsoft", op_type}] = {apply, nullptr, true};
  };
  add("Attention", lowerAttention);
  add("GroupQueryAttention", lowerGroupQueryAttention);
  add("MultiHeadAttention", lowerMultiHeadAttention);
  add("RotaryEmbedding", lowerRotaryEmbedding);
}

}  // namespace pipeshard
