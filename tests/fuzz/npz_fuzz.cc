// Input: a complete .npz, .npy or zip file of torch.save.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "aqt/io/tensors/tensor_source.h"
#include "tests/fuzz/read_container.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto source = aqt::OpenFuzzed("x.npz", std::string(reinterpret_cast<const char*>(bytes), size));
  if (source != nullptr) aqt::ReadAll(*source);
  return 0;
}
