#ifndef AQT_TESTS_FUZZ_READ_CONTAINER_H_
#define AQT_TESTS_FUZZ_READ_CONTAINER_H_

// Opens a file that holds tensors and reads them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/check.h"
#include "aqt/io/containers/container_testing.h"
#include "aqt/io/containers/open_container.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt {

// Each tensor has the size that its shape says, and a part of it is the same as in the whole.
inline void ReadAll(const io::TensorSource& source) {
  constexpr int64_t kMaxBytes = 1 << 16;
  int tensors = 0;
  for (const io::TensorInfo& tensor : source.tensors()) {
    AQT_CHECK(*io::TensorBytes(tensor.dtype, tensor.shape) == tensor.num_bytes());
    if (tensor.num_bytes() > kMaxBytes || ++tensors > 100) continue;
    std::vector<uint8_t> whole(static_cast<size_t>(tensor.num_bytes()));
    if (!source.Read(tensor, 0, absl::MakeSpan(whole)).ok()) continue;
    std::vector<uint8_t> part(whole.size() / 3);
    const auto at = static_cast<int64_t>(whole.size() - part.size()) / 2;
    AQT_CHECK(source.Read(tensor, at, absl::MakeSpan(part)).ok());
    AQT_CHECK(std::equal(part.begin(), part.end(), whole.begin() + at));
  }
}

// The tensors of a file of this name and content; null if there are none.
inline std::unique_ptr<io::TensorSource> OpenFuzzed(absl::string_view name, std::string content) {
  std::unique_ptr<io::RandomAccessFile> file = io::TextFile(std::string(name), std::move(content));
  auto source = io::OpenContainers({.raw_dtype = io::FileDType::kBF16})(file);
  return source.ok() ? *std::move(source) : nullptr;
}

}  // namespace aqt

#endif  // AQT_TESTS_FUZZ_READ_CONTAINER_H_
