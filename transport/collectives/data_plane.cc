#include "transport/collectives/data_plane.h"

#include "ir/base/error.h"

namespace pipeshard {

std::string_view dataPlaneName(DataPlane plane) { return plane == DataPlane::kCurve ? "curve" : "private"; }

DataPlane parseDataPlane(const std::string& text) {
  for (const DataPlane plane : {DataPlane::kCurve, DataPlane::kPrivate}) {
    if (text == dataPlaneName(plane)) return plane;
  }
  fail(ErrorCode::kUsage,
       "--data-plane {}: expected curve (encrypted, for members of the job only) or private (neither, on a "
       "network whose machines you trust)",
       text);
}

}  // namespace pipeshard
