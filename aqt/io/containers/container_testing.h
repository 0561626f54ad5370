#ifndef AQT_IO_CONTAINERS_CONTAINER_TESTING_H_
#define AQT_IO_CONTAINERS_CONTAINER_TESTING_H_

// Files in memory, and zip archives, for tests.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aqt/io/file.h"

namespace aqt::io {

std::unique_ptr<RandomAccessFile> TextFile(std::string path, std::string content);

struct ZipContent {
  std::string name;
  std::string content;
  bool deflate = false;
};
// The raw deflate stream of a text.
std::string Deflate(const std::string& text);
uint32_t Crc(const std::string& text);
std::string MakeZip(const std::vector<ZipContent>& members);

// A .npy of format version 1 with this header and content.
std::string MakeNpy(const std::string& dict, const std::string& content);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_CONTAINER_TESTING_H_
