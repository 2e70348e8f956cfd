// Weights that come from elsewhere than the model's file (`--weights`, GivenOptions::weights).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// One entry of GivenOptions::weights. A file's path as given; in plans it is absolute.
struct WeightSource {
  enum class Kind : uint8_t {
    kFile,           // safetensors, by the module's names
    kRandomMissing,  // "random": weights whose data file does not exist are drawn
    kRandomNamed,    // "random:REGEX": so are these weights, and inputs, which become weights
  };
  Kind kind = Kind::kFile;
  std::string text;  // the path, or the regular expression
};
WeightSource parseWeightSource(const std::string& text);
std::string weightSourceToString(const WeightSource& source);

struct GivenWeights {
  std::vector<std::string> notes;  // what was taken, and what was not
  // By value name, of all references to files: the type of the numbers there, which holds where the model's
  // own weight was of another (a half that is trained as float32).
  std::map<std::string, DataType> stored_types;
};

// Gives initializers their content, and makes initializers of inputs that are weights. `graph` as read, its
// parameters under the module's names. A tensor of a file belongs to the value of its name; else to the only
// one of which it is the end (of "model.fc.weight" is "fc.weight"), or that is its end. Where a parameter is
// stored transposed (exporter/module_parameters.h) the file has the module's form. Numbers of float16,
// bfloat16, float32 and float64 are converted to the model's of these types: those of a reference by whoever
// reads it.
// A tied parameter goes by all of its names (weight_role.h); a file may have several, with the same content.
// `weight_inputs`: names of inputs that are known to be weights; "random" draws those that no file has.
// `uncalled`: names of the module under which the graph has nothing (ModuleParameters::absent). A tensor of
// such a name is the one embedding of its shape that the files lack, if there is one alone: another name of
// it.
//
// A weight that is drawn (WeightReference::drawn): a matrix or more from a normal distribution, its deviation
// that of Glorot and Bengio 2010; of a vector numbers near 0 for a bias or mean, else in [0.5, 1.5), so that
// scales and variances are what they may be.
//
// Errors: kMissingInput (no such file), kBadModel (not safetensors), kUsage (a tensor that several values may
// mean, or two files have; a file of which nothing is in the model; a regular expression that finds nothing),
// kConfiguration (another shape than the model's, or a type that is not converted: found and expected; two
// names of a tied parameter with different content).
GivenWeights takeGivenWeights(Graph& graph, const std::vector<std::string>& sources,
                              const std::vector<std::string>& weight_inputs = {},
                              const std::vector<std::string>& uncalled = {});

}  // namespace pipeshard
