// Input: a complete file of flax in msgpack. It may be a serving tree of AQT.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "aqt/io/containers/frozen_tree.h"
#include "aqt/io/tensors/tensor_source.h"
#include "tests/fuzz/read_container.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto source = aqt::OpenFuzzed("x.msgpack", std::string(reinterpret_cast<const char*>(bytes), size));
  if (source == nullptr) return 0;
  aqt::ReadAll(*source);
  if (!aqt::io::IsFrozenTree(*source)) return 0;
  const absl::StatusOr<aqt::io::FrozenTree> frozen = aqt::io::OpenFrozenTree(*source);
  if (frozen.ok()) aqt::ReadAll(*frozen->tensors);
  return 0;
}
