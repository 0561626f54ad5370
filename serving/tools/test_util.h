#ifndef AQT_SERVING_TOOLS_TEST_UTIL_H_
#define AQT_SERVING_TOOLS_TEST_UTIL_H_

// Folders and checkpoints for tests.

#include <string>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/safetensors.h"
#include "gtest/gtest.h"

namespace aqt::serving {

using NamedArrays = std::vector<std::pair<std::string, Array>>;

// A new, empty folder named after the running test.
std::string MakeTestFolder();

// A test with such a folder.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override { root_ = MakeTestFolder(); }
  std::string At(const std::string& name) const { return io::JoinPath(root_, name); }
  std::string root_;
};

// Writes a file with these tensors; dies on failure. `path` may exist.
void WriteTensors(const std::string& path, const NamedArrays& tensors, const io::Metadata& metadata = {});
void WriteText(const std::string& path, const std::string& text);
std::string ReadText(const std::string& path);

// Files and folders in `folder`, recursively, as relative paths; sorted.
std::vector<std::string> ListTree(const std::string& folder);

// Synthetic weights: a bell shape, and a row of zeros (row 1, if there are three rows); equal for equal seeds.
Array MakeWeight(DType dtype, Shape shape, int seed);

// A model with q_proj [48,64] and bias, up_proj [7,32], a norm, embedding and lm_head, of `dtype`; config.json,
// tokenizer.json and 1_Pooling/config.json beside it.
NamedArrays SmallModel(DType dtype);
void WriteSmallModel(const std::string& folder, DType dtype);
// The same model in two files with an index.
void WriteShardedModel(const std::string& folder, DType dtype);

// The names of the tensors that differ between two checkpoints, or exist in only one of them.
std::vector<std::string> DifferentTensors(const std::string& a, const std::string& b);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_TEST_UTIL_H_
