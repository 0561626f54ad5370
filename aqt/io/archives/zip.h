#ifndef AQT_IO_ARCHIVES_ZIP_H_
#define AQT_IO_ARCHIVES_ZIP_H_

// Private to this folder: zip archives, with ZIP64. Members are stored or deflated.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/archives/block_cache.h"
#include "aqt/io/archives/inflated_file.h"
#include "aqt/io/file.h"

namespace aqt::io {

struct ZipMember {
  std::string name;
  bool deflated = false;
  DeflatedRange range;  // of its content in the archive; a stored one has deflated_bytes == size
};

// What readers of an archive share.
struct ContainerMemory {
  std::shared_ptr<BlockCache> blocks = std::make_shared<BlockCache>();
  std::shared_ptr<InflaterPool> inflaters = std::make_shared<InflaterPool>();
};

// The members in the order of their content. DataLoss, naming the member and the cause, for a damaged archive: names
// that occur twice, members that overlap, or do not fit into the file, headers that contradict each other, or a size
// that deflate cannot reach. Unimplemented for archives in several parts, encryption and other compressions.
absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const RandomAccessFile& file);

// The content of a member. The checksum of a stored one is not compared.
std::unique_ptr<RandomAccessFile> OpenZipMember(std::shared_ptr<const RandomAccessFile> file, const ZipMember& member,
                                                const ContainerMemory& memory);

}  // namespace aqt::io

#endif  // AQT_IO_ARCHIVES_ZIP_H_
