#include "tests/sharding/specs/spec_lists.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace pipeshard::testing {

std::vector<ShardingSpec> specsOf(const Shape& shape, const LogicalMesh& mesh) {
  // Mesh axes in every order, each appended to an axis, partial, or left out.
  std::set<ShardingSpec> found;
  std::vector<int> order(mesh.shape.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t places = shape.size() + 2;
  size_t choices = 1;
  for (size_t a = 0; a < order.size(); ++a) choices *= places;
  do {
    for (size_t choice = 0; choice < choices; ++choice) {
      ShardingSpec spec = replicated(shape.size());
      size_t rest = choice;
      for (int mesh_axis : order) {
        const size_t place = rest % places;
        rest /= places;
        if (place < shape.size()) spec.axes[place].push_back(mesh_axis);
        if (place == shape.size()) spec.partial.push_back(mesh_axis);
      }
      std::sort(spec.partial.begin(), spec.partial.end());
      if (specFault(spec, shape, mesh).empty()) found.insert(spec);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return {found.begin(), found.end()};
}

}  // namespace pipeshard::testing
