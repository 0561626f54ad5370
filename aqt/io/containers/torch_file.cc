#include "aqt/io/containers/torch_file.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/archives/bytes.h"
#include "aqt/io/archives/part_file.h"
#include "aqt/io/containers/container_source.h"
#include "aqt/io/containers/pickle.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

constexpr absl::string_view kPickleMember = "/data.pkl";

// The bytes of a storage.
struct StorageFile {
  std::shared_ptr<const RandomAccessFile> data;
  bool sequential = false;
};
using StorageFiles = std::map<std::string, StorageFile>;  // by key

const ZipMember* FindMember(const std::vector<ZipMember>& members, absl::string_view name) {
  const auto it = std::find_if(members.begin(), members.end(), [&](const ZipMember& m) { return m.name == name; });
  return it == members.end() ? nullptr : &*it;
}

absl::StatusOr<std::unique_ptr<TensorSource>> MakeSource(const RandomAccessFile& file, const PickledTensors& pickled,
                                                         const StorageFiles& storages, const ContainerMemory& memory) {
  std::vector<StoredTensor> tensors;
  for (const PickledTensor& pickle : pickled.tensors) {
    const PickledStorage& storage = pickled.storages[static_cast<size_t>(pickle.storage)];
    const auto found = storages.find(storage.key);
    if (found == storages.end() || found->second.data->size() < storage.bytes()) {
      return absl::DataLossError(absl::StrCat(
          "tensor ", QuoteForMessage(pickle.name), ": its storage ", QuoteForMessage(storage.key),
          found == storages.end() ? std::string(" is missing")
                                  : absl::StrCat(" has ", found->second.data->size(), " bytes, not ", storage.bytes()),
          "; download the file again"));
    }
    StoredTensor tensor;
    tensor.spec = {pickle.name, pickle.dtype, pickle.shape};
    tensor.data = found->second.data;
    tensor.sequential = found->second.sequential;
    tensor.begin = pickle.offset * (BitWidth(pickle.dtype) / 8);
    tensor.strides = pickle.strides;
    tensors.push_back(std::move(tensor));
  }
  std::vector<std::string> warnings;
  if (pickled.num_left_out > 0) {
    const bool several = pickled.num_left_out > 1;
    warnings.push_back(absl::StrCat(QuoteForMessage(pickled.left_out), several ? " and others" : "", " in ",
                                    QuoteForMessage(file.path()), several ? " are" : " is",
                                    " left out: ", pickled.num_left_out,
                                    several ? " values are not tensors" : " value is not a tensor"));
  }
  return ContainerSource::Make(file, std::move(tensors), {}, std::move(warnings), memory);
}

absl::Status CheckByteOrder(const std::shared_ptr<const RandomAccessFile>& file, const std::vector<ZipMember>& members,
                            absl::string_view prefix, const ContainerMemory& memory) {
  const ZipMember* member = FindMember(members, absl::StrCat(prefix, "/byteorder"));
  if (member == nullptr) return absl::OkStatus();
  const std::unique_ptr<RandomAccessFile> order = OpenZipMember(file, *member, memory);
  AQT_ASSIGN_OR_RETURN(const std::string text, ReadText(*order, 0, std::min<int64_t>(order->size(), 16)));
  if (text == "little") return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("its byte order is ", QuoteForMessage(text), "; only 'little' is read: save it on another machine"));
}

}  // namespace

bool IsTorchArchive(const std::vector<ZipMember>& members) {
  return std::any_of(members.begin(), members.end(),
                     [](const ZipMember& member) { return absl::EndsWith(member.name, kPickleMember); });
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchArchive(std::unique_ptr<RandomAccessFile> file,
                                                               const std::vector<ZipMember>& members,
                                                               const ContainerMemory& memory) {
  const std::shared_ptr<const RandomAccessFile> archive = std::move(file);
  const ZipMember* pickle = nullptr;
  for (const ZipMember& member : members) {
    if (!absl::EndsWith(member.name, kPickleMember)) continue;
    if (pickle != nullptr) {
      return absl::DataLossError(
          absl::StrCat("it has two pickles, ", QuoteForMessage(pickle->name), " and ", QuoteForMessage(member.name)));
    }
    pickle = &member;
  }
  const absl::string_view prefix = absl::StripSuffix(pickle->name, kPickleMember);
  if (FindMember(members, absl::StrCat(prefix, "/constants.pkl")) != nullptr) {
    return absl::UnimplementedError(
        "it is a TorchScript program, which holds code; save the state_dict() of its module");
  }
  AQT_RETURN_IF_ERROR(CheckByteOrder(archive, members, prefix, memory));
  if (pickle->range.size > kMaxPickleBytes) {
    return absl::UnimplementedError(absl::StrCat(QuoteForMessage(pickle->name), " has ", pickle->range.size,
                                                 " bytes; up to ", kMaxPickleBytes, " are read"));
  }
  AQT_ASSIGN_OR_RETURN(const std::string text,
                       ReadText(*OpenZipMember(archive, *pickle, memory), 0, pickle->range.size));
  AQT_ASSIGN_OR_RETURN(const PickledTensors pickled, ReadPickledTensors(text));
  const std::string data_prefix = absl::StrCat(prefix, "/data/");
  StorageFiles storages;
  for (const ZipMember& member : members) {
    absl::string_view key = member.name;
    if (!absl::ConsumePrefix(&key, data_prefix)) continue;
    storages[std::string(key)] = {OpenZipMember(archive, member, memory), member.deflated};
  }
  return MakeSource(*archive, pickled, storages, memory);
}

int64_t OldTorchMagicBytes(absl::string_view begin) {
  constexpr absl::string_view kNumber("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 13);
  constexpr char kNewestProtocol = 5;
  if (begin.size() < 2 || begin[0] != '\x80' || begin[1] < 2 || begin[1] > kNewestProtocol) return 0;
  // From protocol 4 on, the number is in a frame: an opcode and its length in 8 bytes.
  constexpr size_t kProtocolBytes = 2, kFrameBytes = 9;
  const size_t number = begin.substr(kProtocolBytes, 1) == "\x95" ? kProtocolBytes + kFrameBytes : kProtocolBytes;
  if (begin.size() < number || !absl::StartsWith(begin.substr(number), kNumber)) return 0;
  return static_cast<int64_t>(number + kNumber.size());
}

// Five pickles (a magic number, the version, sizes of types, the dict of tensors, the keys of the storages), then the
// storages: the number of elements in 8 bytes, and the elements.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenOldTorchFile(std::unique_ptr<RandomAccessFile> file,
                                                               const ContainerMemory& memory) {
  const std::shared_ptr<const RandomAccessFile> data = std::move(file);
  AQT_ASSIGN_OR_RETURN(const std::string text, ReadText(*data, 0, std::min(data->size(), 2 * kMaxPickleBytes)));
  const absl::string_view all = text;
  int64_t at = OldTorchMagicBytes(all);
  const auto rest = [&] { return all.substr(static_cast<size_t>(at)); };
  for (int i = 0; i < 2; ++i) {
    AQT_ASSIGN_OR_RETURN(const int64_t bytes, SkipPickle(rest()));
    at += bytes;
  }
  AQT_ASSIGN_OR_RETURN(const PickledTensors pickled, ReadPickledTensors(rest()));
  at += pickled.bytes;
  int64_t key_bytes = 0;
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadPickledTexts(rest(), &key_bytes));
  at += key_bytes;
  std::map<absl::string_view, int64_t> sizes;
  for (const PickledStorage& storage : pickled.storages) sizes[storage.key] = storage.bytes();
  StorageFiles storages;
  for (const std::string& key : keys) {
    constexpr int64_t kCountBytes = 8;
    const auto size = sizes.find(key);
    const int64_t bytes = size == sizes.end() ? 0 : size->second;
    if (size == sizes.end() || data->size() - at < kCountBytes || data->size() - at - kCountBytes < bytes) {
      return absl::DataLossError(absl::StrCat("storage ", QuoteForMessage(key), " is ",
                                              size == sizes.end() ? "not used by a tensor" : "cut off",
                                              "; download the file again"));
    }
    at += kCountBytes;
    storages[key].data = std::make_shared<PartFile>(data, std::vector<PartFile::Range>{{at, bytes}});
    at += bytes;
  }
  return MakeSource(*data, pickled, storages, memory);
}

}  // namespace aqt::io
