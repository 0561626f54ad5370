#include "aqt/io/tensors/tensor_source.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"

namespace aqt::io {

std::vector<int32_t> SortByName(const std::vector<TensorInfo>& tensors) {
  std::vector<int32_t> by_name(tensors.size());
  std::iota(by_name.begin(), by_name.end(), 0);
  std::sort(by_name.begin(), by_name.end(), [&](int32_t a, int32_t b) { return tensors[a].name < tensors[b].name; });
  return by_name;
}

const TensorInfo* FindByName(const std::vector<TensorInfo>& tensors, const std::vector<int32_t>& by_name,
                             absl::string_view name) {
  const auto it = std::lower_bound(by_name.begin(), by_name.end(), name, [&](int32_t i, absl::string_view n) {
    return absl::string_view(tensors[i].name) < n;
  });
  return it != by_name.end() && tensors[*it].name == name ? &tensors[*it] : nullptr;
}

void TensorSource::SetContents(std::string path, std::vector<Shard> shards, std::vector<TensorInfo> tensors,
                               std::vector<std::string> warnings) {
  path_ = std::move(path);
  shards_ = std::move(shards);
  tensors_ = std::move(tensors);
  warnings_ = std::move(warnings);
  by_name_ = SortByName(tensors_);
  total_bytes_ = 0;
  for (const TensorInfo& tensor : tensors_) total_bytes_ += tensor.num_bytes();
}

std::vector<std::string> TensorSource::shard_names() const {
  std::vector<std::string> names;
  for (const Shard& shard : shards_) names.push_back(shard.name);
  return names;
}

std::string TensorSource::Describe(const TensorInfo& tensor) const {
  return absl::StrCat("'", shards_[tensor.shard].path, "', tensor ", QuoteForMessage(tensor.name));
}

const TensorInfo* TensorSource::Find(absl::string_view name) const { return FindByName(tensors_, by_name_, name); }

absl::Status TensorSource::Read(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  const int64_t bytes = static_cast<int64_t>(dst.size());
  if (offset < 0 || offset > tensor.num_bytes() || bytes > tensor.num_bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat(Describe(tensor), ": ", bytes, " bytes at ", offset,
                                              " are not inside its ", tensor.num_bytes(), " bytes"));
  }
  return bytes == 0 ? absl::OkStatus() : ReadBytes(tensor, offset, dst);
}

absl::StatusOr<Array> TensorSource::ReadArray(absl::string_view name) const {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("'", path_, "' has no tensor ", QuoteForMessage(name)));
  }
  return ReadArray(*tensor);
}

absl::StatusOr<Array> TensorSource::ReadArray(const TensorInfo& tensor) const {
  const std::optional<DType> dtype = ToDType(tensor.dtype);
  if (!dtype.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(Describe(tensor), ": no array type for ", ToString(tensor.dtype), "; read its bytes instead"));
  }
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({*dtype, tensor.shape});
  const absl::Span<uint8_t> bytes = absl::MakeSpan(static_cast<uint8_t*>(builder.data()), tensor.num_bytes());
  AQT_RETURN_IF_ERROR(Read(tensor, 0, bytes));
  if (*dtype == DType::kBool) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte > 1; });
    if (bad != bytes.end()) {
      return absl::DataLossError(
          absl::StrCat(Describe(tensor), ": element ", bad - bytes.begin(), " of a BOOL is ", int{*bad}));
    }
  }
  return std::move(builder).Build();
}

}  // namespace aqt::io
