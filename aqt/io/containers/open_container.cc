#include "aqt/io/containers/open_container.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/archives/bytes.h"
#include "aqt/io/archives/zip.h"
#include "aqt/io/containers/flax_file.h"
#include "aqt/io/containers/numpy_file.h"
#include "aqt/io/containers/torch_file.h"

namespace aqt::io {
namespace {

using Source = absl::StatusOr<std::unique_ptr<TensorSource>>;

constexpr int64_t kLookedAt = 32;  // bytes at the beginning of a file

// Whether a msgpack map with a text as its first key, or an empty one, begins.
bool BeginsAsMsgpack(absl::string_view begin) {
  const auto byte = [&](size_t i) { return i < begin.size() ? static_cast<uint8_t>(begin[i]) : uint8_t{0}; };
  const size_t key = byte(0) == 0xde ? 3 : byte(0) == 0xdf ? 5 : 1;
  if (key == 1 && (byte(0) < 0x80 || byte(0) > 0x8f)) return false;
  if (begin.size() == key) return true;
  return (byte(key) >= 0xa0 && byte(key) <= 0xbf) || (byte(key) >= 0xd9 && byte(key) <= 0xdb) ||
         (byte(key) >= 0xc4 && byte(key) <= 0xc6);
}

Source OpenZip(std::unique_ptr<RandomAccessFile> file, const ContainerOptions& options, const ContainerMemory& memory) {
  AQT_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, ReadZipDirectory(*file));
  if (IsTorchArchive(members)) return OpenTorchArchive(std::move(file), members, memory);
  const bool has_arrays = std::any_of(members.begin(), members.end(),
                                      [](const ZipMember& member) { return absl::EndsWith(member.name, ".npy"); });
  if (has_arrays || (members.empty() && absl::EndsWith(file->path(), ".npz"))) {
    return OpenNpz(std::move(file), members, options.raw_dtype, memory);
  }
  return absl::UnimplementedError(
      "it is a zip archive with neither .npy arrays nor the data.pkl of torch.save; unpack it, or save its tensors as "
      "safetensors");
}

// "cannot read PyTorch file 'model.bin': ..".
Source Named(absl::string_view format, const std::string& path, Source source) {
  if (source.ok()) return source;
  return Annotate(source.status(), absl::StrCat("cannot read ", format, " '", path, "'"));
}

Source Open(std::unique_ptr<RandomAccessFile>& file, const ContainerOptions& options, const ContainerMemory& memory) {
  const std::string path = file->path();
  AQT_ASSIGN_OR_RETURN(const std::string begin, ReadText(*file, 0, std::min(kLookedAt, file->size())));
  if (absl::StartsWith(begin, "PK\x03\x04") || absl::StartsWith(begin, absl::string_view("PK\x05\x06", 4))) {
    return Named("zip archive", path, OpenZip(std::move(file), options, memory));
  }
  if (absl::StartsWith(begin, kNpyMagic)) {
    return Named("NumPy file", path, OpenNpy(std::move(file), options.raw_dtype, memory));
  }
  if (OldTorchMagicBytes(begin) > 0) {
    return Named("PyTorch file", path, OpenOldTorchFile(std::move(file), memory));
  }
  // A pickle of a program of its own may begin as a map does, so the name has to agree.
  if (absl::EndsWith(path, ".msgpack") ? !begin.empty() && BeginsAsMsgpack(begin)
                                       : BeginsAsMsgpack(begin) && !absl::StartsWith(begin, "\x80")) {
    return Named("msgpack file", path, OpenFlaxFile(std::move(file), memory));
  }
  return nullptr;
}

}  // namespace

OpenOther OpenContainers(const ContainerOptions& options) {
  return [options, memory = ContainerMemory()](std::unique_ptr<RandomAccessFile>& file) {
    return Open(file, options, memory);
  };
}

}  // namespace aqt::io
