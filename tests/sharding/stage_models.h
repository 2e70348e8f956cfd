// Training graphs without weights' data, for tests and timings of sharding: planning reads shapes only.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/training_graph.h"

namespace pipeshard::testing {

// Builds a prepared forward graph in float32, then its training step. Parameters are references to a file
// that does not exist.
class StageModel {
 public:
  StageModel();
  StageModel(const StageModel&) = delete;

  ValueId input(const std::string& name, Shape shape, DataType type = DataType::kFloat32, int axis = 0);
  ValueId parameter(const std::string& name, Shape shape);
  ValueId integers(const std::vector<int64_t>& elements);
  ValueId op(const std::string& type, std::vector<ValueId> inputs, Shape shape,
             std::map<std::string, Attribute> attributes = {});
  // `optimizer`: as parseOptimizer reads it.
  TrainingGraph finish(ValueId loss, const std::string& optimizer = "sgd:lr=0.01");

 private:
  Graph graph_;
  GraphBuilder builder_;
  std::vector<BatchInput> inputs_;
};

std::vector<NodeId> allNodes(const TrainingGraph& training);

// y = x w1 w2 with a sum of squared differences from y as the loss: "two matmul layers".
struct TwoLayerSizes {
  int64_t batch = 2048;
  int64_t width = 8192;
};
TrainingGraph twoLayers(const TwoLayerSizes& sizes, const std::string& optimizer = "sgd:lr=0.01");

// Two layers with biases and Relu, "fc1.weight" [in,hidden], "fc2.weight" [hidden,out].
TrainingGraph perceptron(int64_t batch, int64_t in, int64_t hidden, int64_t out,
                         const std::string& optimizer = "sgd:lr=0.01");

struct GptSizes {
  int64_t layers = 1;
  int64_t batch = 8;
  int64_t sequence = 1024;
  int64_t hidden = 1024;
  int64_t heads = 16;
  int64_t vocabulary = 0;  // 0: no embedding; the input is the residual stream, the loss a sum of squares
};
// GPT-like blocks with separate projections for queries, keys and values: "h.0.q", "h.0.k", "h.0.v",
// "h.0.proj", "h.0.fc", "h.0.out".
TrainingGraph gpt(const GptSizes& sizes, const std::string& optimizer = "sgd:lr=0.01");

// A block with a dense layer and a layer of experts, GShard's way: tokens are dispatched to experts by matrix
// products with a mask that comes with the batch [batch, sequence, experts * capacity]. "dense"
// [hidden,hidden], "up" [experts,hidden,inner], "down".
struct ExpertSizes {
  int64_t batch = 8;
  int64_t sequence = 1024;
  int64_t hidden = 512;
  int64_t experts = 8;
  int64_t capacity = 256;  // tokens that an expert takes of one example
  int64_t inner = 2048;
};
TrainingGraph mixtureOfExperts(const ExpertSizes& sizes, const std::string& optimizer = "sgd:lr=0.01");

}  // namespace pipeshard::testing
