#include "aqt/io/archives/zip.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/archives/bytes.h"
#include "aqt/io/archives/part_file.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocator64Bytes = 20;
constexpr int64_t kEntryBytes = 46;
constexpr int64_t kLocalBytes = 30;
constexpr int64_t kMaxCommentBytes = 0xFFFF;
constexpr int64_t kMaxDirectoryBytes = 64 << 20;
constexpr uint64_t kIn64 = 0xFFFFFFFF;  // the value is in the ZIP64 field
// Deflate needs at least one byte for 1032.
constexpr int64_t kMaxRatio = 1032;

struct Directory {
  int64_t begin = 0;
  int64_t bytes = 0;
  uint64_t members = 0;
};

absl::Status Damaged(absl::string_view cause) {
  return absl::DataLossError(
      absl::StrCat("the zip archive is damaged or cut off: ", cause, "; download or copy it again"));
}

// Checks that the directory is inside the part of the file before `end`.
absl::StatusOr<Directory> Checked(uint64_t begin, uint64_t bytes, uint64_t members, int64_t end) {
  if (begin > static_cast<uint64_t>(end) || bytes > static_cast<uint64_t>(end) - begin) {
    return Damaged(absl::StrCat("its directory at byte ", begin, " with ", bytes, " bytes is not inside the file"));
  }
  if (bytes > static_cast<uint64_t>(kMaxDirectoryBytes)) {
    return absl::UnimplementedError(
        absl::StrCat("the zip archive's directory has ", bytes, " bytes; up to ", kMaxDirectoryBytes, " are read"));
  }
  if (members > bytes / kEntryBytes) {
    return Damaged(absl::StrCat(members, " members do not fit into a directory of ", bytes, " bytes"));
  }
  return Directory{static_cast<int64_t>(begin), static_cast<int64_t>(bytes), members};
}

absl::StatusOr<Directory> FindDirectory(const RandomAccessFile& file) {
  const int64_t tail_bytes = std::min(file.size(), kEndBytes + kMaxCommentBytes);
  AQT_ASSIGN_OR_RETURN(const std::string tail, ReadText(file, file.size() - tail_bytes, tail_bytes));
  int64_t at = tail_bytes - kEndBytes;
  const auto is_end = [&](int64_t i) {
    return LittleEndian(&tail[i], 4) == 0x06054B50 &&
           static_cast<int64_t>(LittleEndian(&tail[i + 20], 2)) == tail_bytes - i - kEndBytes;
  };
  while (at >= 0 && !is_end(at)) --at;
  if (at < 0) return Damaged("its directory, at the end, is missing");
  const char* const end = &tail[at];
  const uint64_t disk = LittleEndian(end + 4, 2), members = LittleEndian(end + 10, 2);
  const uint64_t bytes = LittleEndian(end + 12, 4), begin = LittleEndian(end + 16, 4);
  const int64_t end_at = file.size() - tail_bytes + at;
  const int64_t locator_at = end_at - kLocator64Bytes;
  std::string locator;
  if (locator_at >= 0) {
    AQT_ASSIGN_OR_RETURN(locator, ReadText(file, locator_at, kLocator64Bytes));
  }
  if (locator.empty() || LittleEndian(locator.data(), 4) != 0x07064B50) {
    if (disk != 0) return absl::UnimplementedError("the zip archive is in several parts; join them first");
    return Checked(begin, bytes, members, end_at);
  }
  const uint64_t end64_at = LittleEndian(&locator[8], 8);
  if (LittleEndian(&locator[16], 4) > 1) {
    return absl::UnimplementedError("the zip archive is in several parts; join them first");
  }
  if (locator_at < kEnd64Bytes || end64_at > static_cast<uint64_t>(locator_at - kEnd64Bytes)) {
    return Damaged(absl::StrCat("its ZIP64 record at byte ", end64_at, " is not inside the file"));
  }
  AQT_ASSIGN_OR_RETURN(const std::string end64, ReadText(file, static_cast<int64_t>(end64_at), kEnd64Bytes));
  if (LittleEndian(end64.data(), 4) != 0x06064B50) {
    return Damaged(absl::StrCat("there is no ZIP64 record at byte ", end64_at));
  }
  return Checked(LittleEndian(&end64[48], 8), LittleEndian(&end64[40], 8), LittleEndian(&end64[32], 8),
                 static_cast<int64_t>(end64_at));
}

// A member as the directory describes it.
struct Entry {
  absl::string_view name;
  uint64_t flags, method, crc, deflated, size, local;
};

// Takes the next values of 8 bytes for those that are too large for 4.
absl::Status ReadZip64(absl::string_view extra, Entry& entry) {
  std::vector<uint64_t*> wide;
  for (uint64_t* value : {&entry.size, &entry.deflated, &entry.local}) {
    if (*value == kIn64) wide.push_back(value);
  }
  if (wide.empty()) return absl::OkStatus();
  while (extra.size() >= 4) {
    const uint64_t id = LittleEndian(extra.data(), 2), bytes = LittleEndian(extra.data() + 2, 2);
    extra.remove_prefix(4);
    if (bytes > extra.size()) break;
    if (id == 1 && bytes >= 8 * wide.size()) {
      for (uint64_t* value : wide) {
        *value = LittleEndian(extra.data(), 8);
        extra.remove_prefix(8);
      }
      return absl::OkStatus();
    }
    extra.remove_prefix(bytes);
  }
  return Damaged(absl::StrCat("member ", QuoteForMessage(entry.name), " lacks its ZIP64 sizes"));
}

// Takes an entry from the text of the directory.
absl::StatusOr<Entry> NextEntry(absl::string_view& directory) {
  if (directory.size() < kEntryBytes || LittleEndian(directory.data(), 4) != 0x02014B50) {
    return Damaged("its directory has fewer members than it says");
  }
  const char* const p = directory.data();
  Entry entry;
  entry.flags = LittleEndian(p + 8, 2);
  entry.method = LittleEndian(p + 10, 2);
  entry.crc = LittleEndian(p + 16, 4);
  entry.deflated = LittleEndian(p + 20, 4);
  entry.size = LittleEndian(p + 24, 4);
  entry.local = LittleEndian(p + 42, 4);
  const uint64_t name = LittleEndian(p + 28, 2), extra = LittleEndian(p + 30, 2), comment = LittleEndian(p + 32, 2);
  directory.remove_prefix(kEntryBytes);
  if (name + extra + comment > directory.size()) return Damaged("its directory is cut off");
  entry.name = directory.substr(0, name);
  AQT_RETURN_IF_ERROR(ReadZip64(directory.substr(name, extra), entry));
  directory.remove_prefix(name + extra + comment);
  return entry;
}

absl::Status CheckEntry(const Entry& entry) {
  const std::string member = absl::StrCat("member ", QuoteForMessage(entry.name));
  if ((entry.flags & 1) != 0) {
    return absl::UnimplementedError(absl::StrCat(member, " of the zip archive is encrypted; decrypt it first"));
  }
  if (entry.method != 0 && entry.method != 8) {
    return absl::UnimplementedError(absl::StrCat(member, " of the zip archive is compressed by method ", entry.method,
                                                 "; only stored and deflated (8) members are read: save it again"));
  }
  if (entry.method == 0 && entry.deflated != entry.size) {
    return Damaged(absl::StrCat(member, " is stored in ", entry.deflated, " bytes, but has ", entry.size));
  }
  if (entry.size > uint64_t{1} << 62 || entry.size / kMaxRatio > entry.deflated) {
    return Damaged(absl::StrCat(member, " cannot have ", entry.size, " bytes in ", entry.deflated));
  }
  return absl::OkStatus();
}

// Finds the content from the header in front of it.
absl::StatusOr<ZipMember> FindContent(const RandomAccessFile& file, const Entry& entry, int64_t end) {
  const auto fail = [&](absl::string_view cause) {
    return Damaged(absl::StrCat("member ", QuoteForMessage(entry.name), " ", cause));
  };
  if (end < kLocalBytes || entry.local > static_cast<uint64_t>(end - kLocalBytes)) return fail("begins after the end");
  const auto local_at = static_cast<int64_t>(entry.local);
  AQT_ASSIGN_OR_RETURN(const std::string local, ReadText(file, local_at, kLocalBytes));
  if (LittleEndian(local.data(), 4) != 0x04034B50) return fail(absl::StrCat("has no header at byte ", local_at));
  const auto name_bytes = static_cast<int64_t>(LittleEndian(&local[26], 2));
  const int64_t begin = local_at + kLocalBytes + name_bytes + static_cast<int64_t>(LittleEndian(&local[28], 2));
  if (begin > end || entry.deflated > static_cast<uint64_t>(end - begin)) return fail("ends after the end");
  AQT_ASSIGN_OR_RETURN(const std::string name, ReadText(file, local_at + kLocalBytes, name_bytes));
  if (name != entry.name || LittleEndian(&local[8], 2) != entry.method) {
    return fail(absl::StrCat("has another name or compression in its header at byte ", local_at));
  }
  ZipMember member;
  member.name = name;
  member.deflated = entry.method == 8;
  member.range = {begin, static_cast<int64_t>(entry.deflated), static_cast<int64_t>(entry.size),
                  static_cast<uint32_t>(entry.crc)};
  return member;
}

}  // namespace

absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const RandomAccessFile& file) {
  if (file.size() < kEndBytes) return Damaged(absl::StrCat("it has only ", file.size(), " bytes"));
  AQT_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(file));
  AQT_ASSIGN_OR_RETURN(const std::string text, ReadText(file, directory.begin, directory.bytes));
  absl::string_view rest = text;
  std::vector<ZipMember> members;
  std::set<std::string> names;
  for (uint64_t i = 0; i < directory.members; ++i) {
    AQT_ASSIGN_OR_RETURN(const Entry entry, NextEntry(rest));
    AQT_RETURN_IF_ERROR(CheckEntry(entry));
    if (!names.insert(std::string(entry.name)).second) {
      return Damaged(absl::StrCat("two members are named ", QuoteForMessage(entry.name)));
    }
    AQT_ASSIGN_OR_RETURN(ZipMember member, FindContent(file, entry, directory.begin));
    members.push_back(std::move(member));
  }
  std::sort(members.begin(), members.end(),
            [](const ZipMember& a, const ZipMember& b) { return a.range.begin < b.range.begin; });
  for (size_t i = 1; i < members.size(); ++i) {
    if (members[i - 1].range.begin + members[i - 1].range.deflated_bytes <= members[i].range.begin) continue;
    return Damaged(absl::StrCat("members ", QuoteForMessage(members[i - 1].name), " and ",
                                QuoteForMessage(members[i].name), " overlap"));
  }
  return members;
}

std::unique_ptr<RandomAccessFile> OpenZipMember(std::shared_ptr<const RandomAccessFile> file, const ZipMember& member,
                                                const ContainerMemory& memory) {
  if (member.deflated) {
    return std::make_unique<InflatedFile>(std::move(file), member.range, memory.blocks, memory.inflaters);
  }
  return std::make_unique<PartFile>(std::move(file),
                                    std::vector<PartFile::Range>{{member.range.begin, member.range.size}});
}

}  // namespace aqt::io
