#include "aqt/io/mapped_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/status/statusor.h"

namespace aqt::io {

std::shared_ptr<const void> MappedFiles::Map(absl::string_view path, int64_t offset, int64_t bytes) const {
  const absl::StatusOr<FileInfo> info = fs().Stat(path);
  if (!info.ok() || info->kind != FileKind::kRegular) return nullptr;
  if (offset < 0 || bytes < 1 || offset > info->size || bytes > info->size - offset) return nullptr;
  const int fd = ::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  struct stat now;
  const bool same = ::fstat(fd, &now) == 0 && static_cast<uint64_t>(now.st_dev) == info->device &&
                    static_cast<uint64_t>(now.st_ino) == info->inode && now.st_size == info->size;
  const int64_t begin = offset / sysconf(_SC_PAGESIZE) * sysconf(_SC_PAGESIZE);
  const auto size = static_cast<size_t>(offset + bytes - begin);
  void* const memory = same ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, begin) : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return std::shared_ptr<const void>(static_cast<const char*>(memory) + (offset - begin),
                                     [memory, size](const void*) { ::munmap(memory, size); });
}

}  // namespace aqt::io
