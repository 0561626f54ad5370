#ifndef AQT_IO_MAPPED_FILES_H_
#define AQT_IO_MAPPED_FILES_H_

// Files whose bytes are used where the system has them, instead of being read into memory of their own.

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/forwarding_files.h"

namespace aqt::io {

// A file system for readers that map (tensors/map_tensor.h). Who makes one promises that nobody writes its files in
// place as long as something is mapped. Otherwise the memory changes with the file, and the process gets the signal
// SIGBUS when it reads what has been cut off. Files may be replaced by others, as programs do that write a new file and
// rename it, and may be removed: what is mapped stays. Map is all that this adds to `fs`, which must outlive it.
class MappedFiles final : public ForwardingFiles {
 public:
  explicit MappedFiles(const FileSystem& fs) : ForwardingFiles(fs) {}

  // `fs`, if it is one; otherwise null.
  static const MappedFiles* Of(const FileSystem& fs) { return dynamic_cast<const MappedFiles*>(&fs); }

  // The bytes [offset, offset + bytes) of a file, at least one, to read. They stay as long as they are held, and take
  // memory, which the system may take back, only where they have been read. Null if the file cannot be mapped, is not
  // the one that Stat describes, or does not have these bytes: reading then works, or says what is wrong.
  std::shared_ptr<const void> Map(absl::string_view path, int64_t offset, int64_t bytes) const;
};

}  // namespace aqt::io

#endif  // AQT_IO_MAPPED_FILES_H_
