#include "examples/digits/dataset.h"

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

// A file with the columns' names, `lines` valid rows of label 7, and `last`.
std::string FileWith(int lines, const std::string& last) {
  const std::string path = testing::TempDir() + "/digits.csv";
  std::ofstream file(path);
  file << "names\n";
  for (int i = 0; i < lines; ++i) {
    file << "7";
    for (int p = 0; p < kPixels; ++p) file << "," << p % 17;
    file << "\n";
  }
  file << last;
  return path;
}

TEST(Dataset, ReadsTheProjectsDigits) {
  const absl::StatusOr<Dataset> data = ReadDataset("examples/digits/digits.csv");
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->rows(), 1797);
  int count[kClasses] = {};
  for (int label : data->labels) ++count[label];
  const int expected[kClasses] = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
  for (int c = 0; c < kClasses; ++c) EXPECT_EQ(count[c], expected[c]) << c;
  // The first row is the picture of a zero: 0,0,5,13,9,1,0,0, ...
  EXPECT_EQ(data->labels[0], 0);
  EXPECT_EQ(data->row(0)[2], 5.0f / 16);
  EXPECT_EQ(data->row(0)[3], 13.0f / 16);
  const Dataset test = data->Slice(kTrainRows, data->rows());
  EXPECT_EQ(test.rows(), 360);
  EXPECT_EQ(test.labels.front(), data->labels[kTrainRows]);
  EXPECT_EQ(test.row(359), data->row(1796));
}

TEST(Dataset, NoRows) {
  const absl::StatusOr<Dataset> data = ReadDataset(FileWith(0, ""));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->rows(), 0);
}

TEST(Dataset, NamesTheBadLine) {
  std::string pixels;
  for (int p = 0; p < kPixels; ++p) pixels += ",0";
  for (const std::string& bad : {"10" + pixels, "-1" + pixels, "x" + pixels, "1" + pixels + ",0",
                                 "1" + pixels.substr(2), "1,17" + pixels.substr(2), std::string("\n")}) {
    const absl::StatusOr<Dataset> data = ReadDataset(FileWith(3, bad));
    ASSERT_FALSE(data.ok()) << bad;
    EXPECT_EQ(data.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(data.status().message()).find("digits.csv:5: want a label"), std::string::npos)
        << data.status();
  }
}

TEST(Dataset, MissingFile) {
  EXPECT_EQ(ReadDataset("/nonexistent/digits.csv").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace digits
