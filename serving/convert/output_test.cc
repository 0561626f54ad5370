#include "serving/convert/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "aqt/io/file_testing.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/job_test_util.h"
#include "serving/plan/recipe.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

using OutputTest = JobTest;

TEST_F(OutputTest, PlacesThatAreRefused) {
  WriteSmallModel(At("in"), DType::kF32);
  WriteText(At("file.safetensors"), "something");
  ASSERT_TRUE(Fs().CreateFolder(At("mine")).ok());
  WriteText(At("mine/letter.txt"), "dear");
  ASSERT_EQ(::symlink(At("in").c_str(), At("link").c_str()), 0);
  ASSERT_EQ(::symlink(At("in/model.safetensors").c_str(), At("link.safetensors").c_str()), 0);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const std::vector<std::string> before = ListTree(root_);
  struct Case {
    std::string output;
    bool force;
    absl::StatusCode code;
    std::string message;
  };
  using enum absl::StatusCode;
  for (const Case& c : std::vector<Case>{
           {At("in"), true, kInvalidArgument, "is the input"},
           {At("in/"), true, kInvalidArgument, "is the input"},
           {At("link"), true, kInvalidArgument, "is the input"},
           {At("in/../in"), true, kInvalidArgument, "is the input"},
           {At("in/model.safetensors"), true, kInvalidArgument, "is the input's file"},
           {At("link.safetensors"), true, kInvalidArgument, "is the input's file"},
           {root_, true, kInvalidArgument, "contains the input"},
           {"/", true, kInvalidArgument, "contains the input"},
           {"", true, kInvalidArgument, "no name"},
           {At("file.safetensors"), false, kAlreadyExists, "--force replaces it"},
           {At("mine"), false, kAlreadyExists, "--force replaces it"},
           {At("mine"), true, kFailedPrecondition, "remove it yourself"},
           {At("missing/out"), false, kNotFound, "does not exist"},
           {At("file.safetensors/out"), false, kFailedPrecondition, "Not a directory"},
           {"/dev/full", false, kFailedPrecondition, "device"},
           {"/dev/full", true, kFailedPrecondition, "device"},
       }) {
    job.output = c.output;
    job.force = c.force;
    const absl::Status status = RunConvertJob(Fs(), job).status();
    EXPECT_EQ(status.code(), c.code) << c.output << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_EQ(ListTree(root_), before) << c.output;
  }
  EXPECT_EQ(ReadText(At("mine/letter.txt")), "dear");
}

// No path that leads to a file of the input is replaced, whatever the name and the links.
TEST_F(OutputTest, TheInputsFilesAreNeverReplaced) {
  WriteShardedModel(At("in"), DType::kF32);
  ASSERT_TRUE(Fs().CreateFolder(At("in/2_Dense")).ok());
  WriteTensors(At("in/2_Dense/model.safetensors"), {{"linear.weight", MakeWeight(DType::kF32, {4, 8}, 1)}});
  WriteTensors(At("in/spare.safetensors"), {{"spare", MakeWeight(DType::kF32, {4}, 1)}});
  // A model with files elsewhere, in a folder that --force would replace.
  ASSERT_TRUE(Fs().CreateFolder(At("blobs")).ok());
  ASSERT_TRUE(Fs().CreateFolder(At("links")).ok());
  WriteTensors(At("blobs/model.safetensors"), SmallModel(DType::kF32));
  ASSERT_EQ(::symlink("../blobs/model.safetensors", At("links/model.safetensors").c_str()), 0);
  std::vector<std::pair<std::string, std::string>> places;  // input, output
  for (const char* name : {"config.json", "model.safetensors.index.json", "tokenizer.json", "1_Pooling/config.json",
                           "2_Dense/model.safetensors", "spare.safetensors", "model-00001-of-00002.safetensors"}) {
    const std::string file = io::JoinPath(At("in"), name);
    const std::string base = absl::StrCat(places.size(), ".safetensors");
    ASSERT_EQ(::symlink(file.c_str(), At("soft" + base).c_str()), 0);
    ASSERT_EQ(::link(file.c_str(), At("hard" + base).c_str()), 0);
    for (const std::string& output : {file, At("soft" + base), At("hard" + base)}) places.emplace_back("in", output);
  }
  for (const char* folder : {"in/1_Pooling", "in/2_Dense", "in/2_Dense/../2_Dense"}) {
    places.emplace_back("in", At(folder));
  }
  places.emplace_back("links", At("blobs"));
  places.emplace_back("links", At("blobs/model.safetensors"));
  const std::vector<std::string> before = ListTree(root_);
  for (const auto& [input, output] : places) {
    ConvertJob job;
    job.recipe.preset = "w8a8_dynamic";
    job.input = At(input);
    job.output = output;
    job.force = true;
    const absl::Status status = RunConvertJob(Fs(), job).status();
    EXPECT_FALSE(status.ok()) << output;
    EXPECT_THAT(std::string(status.message()), HasSubstr(output));
    EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("the input|holds? a checkpoint")) << output;
    EXPECT_EQ(ListTree(root_), before) << output;
  }
  EXPECT_EQ(ReadText(At("in/tokenizer.json")), "{}");
}

TEST_F(OutputTest, WhatTheRunReadsIsNotReplaced) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  WriteText(At("out/my.textproto"), "schema: 1 base: 'w8a8_dynamic'");
  job.recipe.config_file = At("out/my.textproto");
  job.force = true;
  const absl::Status status = RunConvertJob(Fs(), job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("contains a file that this run reads, " + At("out/my.textproto")));
  job.recipe = {};
  job.recipe.scheme_from = At("out");  // its content is in the new output, too
  EXPECT_TRUE(RunConvertJob(Fs(), job).ok());
}

TEST_F(OutputTest, ForceReplacesOnlyWhatAConversionCouldHaveWritten) {
  WriteSmallModel(At("in"), DType::kF32);
  WriteText(At("letter.txt"), "dear");
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  job.output = At("letter.txt");
  job.force = true;
  const absl::Status status = RunConvertJob(Fs(), job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not end in .safetensors"));
  EXPECT_EQ(ReadText(At("letter.txt")), "dear");
}

TEST_F(OutputTest, AMountPointIsFoundByThePreflight) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  ASSERT_TRUE(Fs().CreateFolder(At("out")).ok());
  WriteTensors(At("out.safetensors"), SmallModel(DType::kF32));
  const std::vector<std::string> before = ListTree(root_);
  for (const char* output : {"out", "out.safetensors"}) {
    job.output = At(output);
    job.force = true;
    io::FaultInjectingFileSystem mounted;
    mounted.SetMountPoint(*Fs().RealPath(job.output));
    const absl::Status status = RunConvertJob(mounted, job).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kFile);
    EXPECT_THAT(std::string(status.message()), HasSubstr(job.output + " is a mount point"));
    EXPECT_EQ(mounted.NumCalls(io::FileCall::kWrite), 0) << "before the work";
    EXPECT_EQ(ListTree(root_), before);
  }
}

TEST_F(OutputTest, ALinkToAFolderIsFollowed) {
  WriteSmallModel(At("in"), DType::kF32);
  ASSERT_TRUE(Fs().CreateFolder(At("disk")).ok());
  ASSERT_TRUE(Fs().CreateFolder(At("disk/out")).ok());
  ASSERT_EQ(::symlink("disk/out", At("out").c_str()), 0);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  for (const bool force : {false, true}) {
    job.force = force;
    const absl::Status status = RunConvertJob(Fs(), job).status();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Fs().LStat(At("out"))->kind, io::FileKind::kLink);
    EXPECT_THAT(ListTree(At("disk")), Contains("out/model.safetensors"));
    EXPECT_EQ(Fs().List(At("disk"))->size(), 1u);
  }
  // A dangling link is refused before the work.
  ASSERT_EQ(::symlink("nothing", At("broken").c_str()), 0);
  job.output = At("broken");
  const absl::Status status = RunConvertJob(Fs(), job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is a link to something that does not exist"));
}

TEST_F(OutputTest, ALinkToAFileIsNotReplaced) {
  WriteTensors(At("in.safetensors"), SmallModel(DType::kF32));
  WriteTensors(At("blob.safetensors"), SmallModel(DType::kF32));
  ASSERT_EQ(::symlink("blob.safetensors", At("out.safetensors").c_str()), 0);
  const std::string before = ReadText(At("blob.safetensors"));
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  job.input = At("in.safetensors");
  job.output = At("out.safetensors");
  job.force = true;
  const absl::Status status = RunConvertJob(Fs(), job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is a link to the file " + At("blob.safetensors")));
  EXPECT_EQ(ReadText(At("blob.safetensors")), before);
  job.output = At("blob.safetensors");
  EXPECT_TRUE(RunConvertJob(Fs(), job).ok());
}

TEST_F(OutputTest, TooLittleSpaceIsFoundByThePreflight) {
  WriteSmallModel(At("in"), DType::kF32);
  WriteText(At("in/big.txt"), std::string(20000, 'x'));
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const std::vector<std::string> before = ListTree(root_);
  for (const char* output : {"out", "out.safetensors"}) {
    job.output = At(output);
    io::FaultInjectingFileSystem small;
    small.SetFreeBytes(1234);
    const absl::Status status = RunConvertJob(small, job).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("(1234 bytes) left"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("takes at least"));
    EXPECT_EQ(ListTree(root_), before);
  }
  // Copied files count. If the file system does not report its free space, nothing is refused.
  io::FaultInjectingFileSystem fs;
  job.output = At("out");
  fs.SetFreeBytes(20000);
  EXPECT_EQ(RunConvertJob(fs, job).status().code(), absl::StatusCode::kResourceExhausted);
  fs.SetFreeBytes(std::nullopt);
  EXPECT_TRUE(RunConvertJob(fs, job).ok());
}

TEST_F(OutputTest, AFolderThatCannotBeWrittenToIsFoundByThePreflight) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const std::vector<std::string> before = ListTree(root_);
  int64_t opens = 0;
  {
    io::FaultInjectingFileSystem fs;
    (void)io::Checkpoint::Open(fs, job.input, {.leave_out = job.output});
    (void)LoadRecipe(fs, job.recipe);
    opens = fs.NumCalls(io::FileCall::kOpen);
  }
  for (const int error : {EACCES, EROFS, ENAMETOOLONG}) {
    io::FaultInjectingFileSystem fs;
    fs.FailNth(io::FileCall::kOpen, static_cast<int>(opens) + 1, error);  // the first file that would be created
    const absl::Status status = RunConvertJob(fs, job).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("nothing can be created in " + root_));
    EXPECT_EQ(fs.NumCalls(io::FileCall::kCreateFolder), 0);
    EXPECT_EQ(ListTree(root_), before);
  }
  job.output = At(std::string(300, 'x'));
  EXPECT_THAT(std::string(RunConvertJob(Fs(), job).status().message()), HasSubstr("File name too long"));
}

TEST_F(OutputTest, TwoRunsDoNotShareAPlace) {
  WriteSmallModel(At("in"), DType::kF32);
  ASSERT_TRUE(Fs().CreateFolder(At("disk")).ok());
  ASSERT_EQ(::symlink("disk", At("link").c_str()), 0);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  job.output = At("disk/out");
  ConvertJob second = job;
  second.output = At("link/out/");  // another name of the place
  absl::Status status;
  job.make_progress = [&](int64_t) {  // in the middle of the first run
    const std::vector<std::string> before = ListTree(root_);
    status = RunConvertJob(Fs(), second).status();
    EXPECT_EQ(ListTree(root_), before);
    return nullptr;
  };
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kFile);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another run is writing the output " + At("link/out")));
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("process ", ::getpid())));
  second.force = true;
  EXPECT_TRUE(RunConvertJob(Fs(), second).ok()) << "the first has ended";
  EXPECT_THAT(Fs().List(At("disk")).value(), ElementsAre("out"));
}

TEST_F(OutputTest, AnOutputInsideTheInputIsNotCopied) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  job.output = At("in/out");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  const std::vector<std::string> files = ListTree(At("in/out"));
  EXPECT_THAT(files, Not(Contains("out")));
  job.force = true;
  const absl::Status again = RunConvertJob(Fs(), job).status();
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_EQ(ListTree(At("in/out")), files);
  // Also a single file, and weights without the usual name.
  ASSERT_TRUE(Fs().Rename(At("in/model.safetensors"), At("in/weights.safetensors")).ok());
  ASSERT_TRUE(io::RemoveTree(Fs(), At("in/out")).ok());
  job.output = At("in/out.safetensors");
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = RunConvertJob(Fs(), job).status();
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(OutputTest, NestedWeightsAreCarriedOver) {
  WriteSmallModel(At("in"), DType::kF32);
  ASSERT_TRUE(Fs().CreateFolder(At("in/2_Dense")).ok());
  WriteTensors(At("in/2_Dense/model.safetensors"), {{"linear.weight", MakeWeight(DType::kF32, {4, 8}, 1)}});
  WriteText(At("in/2_Dense/pytorch_model.bin"), "the same");
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->warnings, IsEmpty());
  for (const char* name : {"2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"}) {
    EXPECT_EQ(ReadText(io::JoinPath(At("out"), name)), ReadText(io::JoinPath(At("in"), name)));
  }
}

TEST_F(OutputTest, ASnapshotOfLinksBecomesAFolderOfFiles) {
  WriteSmallModel(At("blobs"), DType::kF32);
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    ASSERT_EQ(::symlink(absl::StrCat("../blobs/", name).c_str(), io::JoinPath(At("in"), name).c_str()), 0);
  }
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->warnings, Contains(HasSubstr("3 files of ")));
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    EXPECT_EQ(Fs().LStat(io::JoinPath(At("out"), name))->kind, io::FileKind::kRegular) << name;
  }
  EXPECT_EQ(ReadText(At("out/tokenizer.json")), "{}");
}

TEST_F(OutputTest, PlacesThatAreAccepted) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  ASSERT_TRUE(Fs().CreateFolder(At("out")).ok());  // empty
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  // --force replaces a checkpoint, with the files in its folders, but does not follow links out of it.
  ASSERT_TRUE(Fs().CreateFolder(At("elsewhere")).ok());
  WriteText(At("elsewhere/keep"), "x");
  ASSERT_EQ(::symlink(At("elsewhere").c_str(), At("out/1_Pooling/link").c_str()), 0);
  job.force = true;
  const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(ReadText(At("elsewhere/keep")), "x");
  EXPECT_THAT(ListTree(At("out")),
              ElementsAre("1_Pooling", "1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_THAT(ListTree(root_), Not(Contains(HasSubstr("aqt-old"))));
}

}  // namespace
}  // namespace aqt::serving
