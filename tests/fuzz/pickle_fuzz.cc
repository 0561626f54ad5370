// Input: the pickle of a file of torch.save, and what follows it in the format before PyTorch 1.6.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "aqt/io/containers/pickle.h"
#include "aqt/io/tensors/tensor_source.h"
#include "tests/fuzz/read_container.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(bytes), size);
  if (const auto pickled = aqt::io::ReadPickledTensors(input); pickled.ok()) {
    AQT_CHECK(pickled->bytes <= static_cast<int64_t>(size));
    for (const aqt::io::PickledTensor& tensor : pickled->tensors) {
      AQT_CHECK(static_cast<size_t>(tensor.storage) < pickled->storages.size());
      AQT_CHECK(tensor.strides.size() == static_cast<size_t>(tensor.shape.rank()));
    }
  }
  // The number that begins a file before PyTorch 1.6, its version and sizes of types.
  const absl::string_view magic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  const absl::string_view begin("\x80\x02M\xe9\x03.\x80\x02}.", 10);
  const auto source = aqt::OpenFuzzed("x.bin", absl::StrCat(magic, begin, input));
  if (source != nullptr) aqt::ReadAll(*source);
  return 0;
}
