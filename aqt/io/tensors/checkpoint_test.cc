#include "aqt/io/tensors/checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/file_testing.h"
#include "aqt/io/tensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using Code = absl::StatusCode;

constexpr char kRecorded[] = "aqt/io/tensors/testdata/checkpoint";
constexpr OutputOptions kOverwrite{.overwrite = true};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    folder_ =
        JoinPath(::testing::TempDir(), absl::StrCat("checkpoint_test_", ::getpid(), "_",
                                                    ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    EXPECT_TRUE(LocalFileSystem().CreateFolder(folder_).ok());
  }
  std::string Path(absl::string_view name) const { return JoinPath(folder_, name); }
  void Write(absl::string_view name, absl::string_view content = "x") {
    ASSERT_TRUE(WriteFile(LocalFileSystem(), Path(name), content, kOverwrite).ok());
  }
  // A file with one U8[1] per name. Its value is the first byte of `file`.
  void WriteShard(absl::string_view file, const std::vector<std::string>& tensors) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : tensors) specs.push_back({name, FileDType::kU8, {1}});
    auto writer = SafetensorsWriter::Create(LocalFileSystem(), Path(file), specs, {.output = kOverwrite}).value();
    const uint8_t value = file.front();
    for (const std::string& name : tensors) {
      ASSERT_TRUE(writer->Write(name, 0, absl::MakeConstSpan(&value, 1)).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
  }
  void WriteIndex(const WeightMap& map) { Write(kIndexFile, MakeIndex(map, 0).value()); }
  absl::StatusOr<Checkpoint> Open() const { return Checkpoint::Open(LocalFileSystem(), folder_); }
  void ExpectRefused(Code code, absl::string_view cause) const {
    const absl::Status status = Open().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(folder_), HasSubstr(std::string(cause))));
  }

  std::string folder_;
};

std::vector<std::string> Names(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TensorInfo& t : checkpoint.tensors()) names.push_back(absl::StrCat(t.shard, ":", t.name));
  return names;
}

TEST(ParseIndexTest, Accepts) {
  EXPECT_THAT(ParseIndex(R"({"metadata":{"total_size":1,"weight_map":[{"weight_map":{}}]},)"
                         R"("weight_map":{"b":"x.safetensors","":"x.safetensors"},"y":[1]})")
                  .value(),
              ElementsAre(Pair("b", "x.safetensors"), Pair("", "x.safetensors")));
  // As written by Python's json module.
  EXPECT_THAT(ParseIndex(R"({"metadata":{"loss":NaN,"total_size":1e999},"weight_map":{"b":"x.safetensors"}})").value(),
              ElementsAre(Pair("b", "x.safetensors")));
}

TEST(ParseIndexTest, Refuses) {
  const auto map = [](absl::string_view file) { return absl::StrCat(R"({"weight_map":{"a":")", file, "\"}}"); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1: "},
      {"[]", "line 1, column 1: a JSON object is expected"},
      {"5", "line 1, column 1: a JSON object is expected"},
      {"{}", "weight_map is missing or empty"},
      {R"({"weight_map":{}})", "weight_map is missing or empty"},
      {R"({"weight_map":5})", "weight_map is not an object"},
      {R"({"weight_map":["a"]})", "weight_map is not an object"},
      {R"({"weight_map":{"a":5}})", "weight_map is not an object"},
      {R"({"weight_map":{"a":{}}})", "weight_map is not an object"},
      {R"({"weight_map":{"a":["x.safetensors"]}})", "weight_map is not an object"},
      {R"({"weight_map":{"a":"x.safetensors"},"weight_map":{"b":"x.safetensors"}})",
       "the key 'weight_map' occurs twice"},
      {R"({"weight_map":{"a":"x.safetensors","b":"x.safetensors","a":"x.safetensors"}})", "the key 'a' occurs twice"},
      {map("../x.safetensors"), "'../x.safetensors'"},
      {map("/x.safetensors"), "names the file"},
      {map("sub/x.safetensors"), "names the file"},
      {map("sub\\\\x.safetensors"), "names the file"},
      {map("x.safetensors\\u0000.safetensors"), "names the file"},
      {map("x.bin"), "names the file"},
      {map(".."), "names the file"},
      {map(""), "names the file"},
      {absl::StrCat("{\"x\":", std::string(100, '['), std::string(100, ']'), "}"), "deeper than"},
  };
  for (const auto& [json, cause] : cases) {
    const absl::Status status = ParseIndex(json).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cause)) << json;
  }
}

TEST(MakeIndexTest, KeepsWhatElseAnIndexSays) {
  IndexExtras extras;
  const WeightMap map = ParseIndex(R"({"format":[1, 2],"metadata":{"total_size":-5,"total_parameters":12345,)"
                                   R"("note":"\u00e9"},"weight_map":{"a":"x.safetensors"}})",
                                   &extras)
                            .value();
  EXPECT_THAT(extras.metadata, ElementsAre(Pair("total_parameters", "12345"), Pair("note", R"("\u00e9")")));
  EXPECT_THAT(extras.members, ElementsAre(Pair("format", "[1, 2]")));
  EXPECT_EQ(MakeIndex(map, 12, extras).value(),
            "{\n  \"metadata\": {\n    \"total_size\": 12,\n    \"total_parameters\": 12345,\n    \"note\": "
            "\"\\u00e9\"\n  },\n  \"format\": [1, 2],\n  \"weight_map\": {\n    \"a\": \"x.safetensors\"\n  }\n}\n");
  ASSERT_TRUE(ParseIndex(R"({"metadata":[],"weight_map":{"a":"x.safetensors"}})", &extras).ok());
  EXPECT_THAT(extras.members, IsEmpty());
}

TEST(MakeIndexTest, RoundTripsAndSorts) {
  const std::string json = MakeIndex({{"b\"", "y.safetensors"}, {"a", "x.safetensors"}}, 12).value();
  EXPECT_EQ(json,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n    \"a\": \"x.safetensors\",\n"
            "    \"b\\\"\": \"y.safetensors\"\n  }\n}\n");
  EXPECT_THAT(ParseIndex(json).value(), ElementsAre(Pair("a", "x.safetensors"), Pair("b\"", "y.safetensors")));
  EXPECT_EQ(MakeIndex({{"a", "x"}, {"a", "y"}}, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeIndex({{"\xff", "x"}}, 0).status().code(), Code::kInvalidArgument);
}

TEST_F(CheckpointTest, RecordedShards) {
  const Checkpoint c = Checkpoint::Open(LocalFileSystem(), kRecorded).value();
  EXPECT_TRUE(c.is_folder());
  EXPECT_TRUE(c.has_index());
  EXPECT_EQ(c.path(), kRecorded);
  EXPECT_THAT(c.shard_names(), ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_THAT(
      Names(c),
      ElementsAre("0:layers.0.down_proj.weight_shape", "0:embed_tokens.weight", "0:layers.0.down_proj.weight_scale",
                  "0:layers.0.norm.weight", "0:layers.0.down_proj.weight_packed", "1:layers.0.q_proj.weight_shape",
                  "1:layers.0.odd_proj.weight", "1:layers.0.q_proj.bias", "1:layers.0.q_proj.weight_scale",
                  "1:lm_head.weight", "1:layers.0.q_proj.weight_packed"));
  EXPECT_EQ(c.total_bytes(), 11040);  // metadata.total_size of the index
  EXPECT_THAT(c.other_files(), ElementsAre("config.json"));
  EXPECT_THAT(c.unused_weight_files(), IsEmpty());
  EXPECT_TRUE(BitEqual(c.ReadArray("layers.0.q_proj.weight_shape").value(), Array::Of<int64_t>({20, 64}, {2})));
  EXPECT_EQ(c.ReadArray("none").status().code(), Code::kNotFound);
  EXPECT_EQ(c.Find("none"), nullptr);
  for (const TensorInfo& t : c.tensors()) EXPECT_EQ(c.Find(t.name), &t);

  // Our index for it equals the original, except for the newline at the end.
  WeightMap map;
  for (const TensorInfo& t : c.tensors()) map.emplace_back(t.name, c.shard_names()[t.shard]);
  EXPECT_EQ(MakeIndex(map, c.total_bytes()).value(),
            ReadFile(LocalFileSystem(), JoinPath(kRecorded, kIndexFile), 1 << 20).value() + "\n");
}

TEST_F(CheckpointTest, AFile) {
  WriteShard("model.safetensors", {"a"});
  Write("config.json");
  const Checkpoint c = Checkpoint::Open(LocalFileSystem(), Path("model.safetensors")).value();
  EXPECT_FALSE(c.is_folder());
  EXPECT_FALSE(c.has_index());
  EXPECT_THAT(Names(c), ElementsAre("0:a"));
  EXPECT_THAT(c.shard_names(), ElementsAre("model.safetensors"));
  EXPECT_THAT(c.other_files(), IsEmpty());
  EXPECT_EQ(Checkpoint::Open(LocalFileSystem(), Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(Checkpoint::Open(LocalFileSystem(), "/dev/full").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Checkpoint::Open(LocalFileSystem(), Path("config.json")).status().code(), Code::kDataLoss);
}

TEST_F(CheckpointTest, WhichFilesOfAFolder) {
  ExpectRefused(Code::kNotFound, "has no .safetensors file");
  Write("pytorch_model.bin");
  ExpectRefused(Code::kNotFound, "has no .safetensors file");

  ASSERT_EQ(::symlink("nothing", Path("link.safetensors").c_str()), 0);
  ExpectRefused(Code::kNotFound, "link.safetensors");
  ASSERT_TRUE(LocalFileSystem().Remove(Path("link.safetensors")).ok());

  WriteShard("only.safetensors", {"a"});
  WriteShard(".hidden.safetensors", {"a"});
  EXPECT_THAT(Open()->shard_names(), ElementsAre("only.safetensors"));

  WriteShard("other.safetensors", {"b"});
  ExpectRefused(Code::kFailedPrecondition, "several .safetensors files (only.safetensors, other.safetensors)");

  WriteShard("model.safetensors", {"c"});
  EXPECT_THAT(Open()->shard_names(), ElementsAre("model.safetensors"));
  EXPECT_THAT(Open()->unused_weight_files(), ElementsAre("only.safetensors", "other.safetensors"));

  WriteIndex({{"a", "only.safetensors"}, {"b", "other.safetensors"}});
  ExpectRefused(Code::kFailedPrecondition, "both model.safetensors and model.safetensors.index.json");

  WriteIndex({{"c", "model.safetensors"}, {"b", "other.safetensors"}});
  EXPECT_THAT(Names(*Open()), ElementsAre("0:c", "1:b"));
  EXPECT_THAT(Open()->unused_weight_files(), ElementsAre("only.safetensors"));
  EXPECT_THAT(Open()->other_files(), ElementsAre("pytorch_model.bin"));
}

TEST_F(CheckpointTest, OtherFiles) {
  const FileSystem& fs = LocalFileSystem();
  WriteShard("model.safetensors", {"a"});
  for (const char* folder : {"1_Pooling", "2_Dense", ".git"}) ASSERT_TRUE(fs.CreateFolder(Path(folder)).ok());
  for (const char* file : {"config.json", "tokenizer.json", ".hidden", "1_Pooling/config.json", ".git/HEAD",
                           "x.safetensors.index.json", "2_Dense/model.safetensors"}) {
    Write(file);
  }
  ASSERT_EQ(::symlink("config.json", Path("link.json").c_str()), 0);
  ASSERT_EQ(::symlink("1_Pooling", Path("0_alias").c_str()), 0);
  const Checkpoint c = Open().value();
  EXPECT_THAT(c.other_files(), ElementsAre("0_alias/config.json", "1_Pooling/config.json", "2_Dense/model.safetensors",
                                           "config.json", "link.json", "tokenizer.json"));
  EXPECT_THAT(c.unused_weight_files(), ElementsAre("x.safetensors.index.json"));
  EXPECT_THAT(c.warnings(), IsEmpty()) << "links inside the folder are nothing to tell";
}

TEST_F(CheckpointTest, WhatCannotBeCarriedOverIsTold) {
  WriteShard("model.safetensors", {"a"});
  ASSERT_TRUE(LocalFileSystem().CreateFolder(Path("sub")).ok());
  Write("sub/file");
  ASSERT_EQ(::symlink("nothing", Path("broken.json").c_str()), 0);
  ASSERT_EQ(::symlink("loop", Path("loop").c_str()), 0);
  ASSERT_EQ(::symlink("..", Path("sub/up").c_str()), 0);
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const Checkpoint c = Open().value();
  EXPECT_THAT(c.other_files(), ElementsAre("sub/file"));
  EXPECT_THAT(c.warnings(), ElementsAre("'broken.json' is left out: the link's target does not exist",
                                        "'loop' is left out: the link is part of a loop",
                                        "'pipe' is left out: it is a pipe, a socket or a device",
                                        "'sub/up' is left out: it leads back to a folder that contains it"));
}

TEST_F(CheckpointTest, FoldersThatLinkToEachOtherEnd) {
  WriteShard("model.safetensors", {"a"});
  for (const char* from : {"a", "b", "c"}) ASSERT_TRUE(LocalFileSystem().CreateFolder(Path(from)).ok());
  for (const std::string from : {"a", "b", "c"}) {
    Write(from + "/file");
    for (const std::string to : {"a", "b", "c"}) {
      ASSERT_EQ(::symlink(("../" + to).c_str(), Path(absl::StrCat(from, "/to_", to)).c_str()), 0);
    }
  }
  const Checkpoint c = Open().value();
  EXPECT_EQ(c.other_files().size(), 9u);  // 3 files, each also through links of two folders
  std::string deep = Path("deep");
  ASSERT_TRUE(LocalFileSystem().CreateFolder(deep).ok());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(WriteFile(LocalFileSystem(), deep + "/f", "x").ok());
    ASSERT_TRUE(LocalFileSystem().CreateFolder(deep += "/d").ok());
  }
  EXPECT_EQ(Open()->other_files().size(), 9u + 32);
  EXPECT_THAT(Open()->warnings(), Contains(HasSubstr("more than 32 folders deep")));
}

// Like the Hugging Face cache, where every file of a snapshot is a link to a blob.
TEST_F(CheckpointTest, ASnapshotOfLinks) {
  const FileSystem& fs = LocalFileSystem();
  for (const char* folder : {"blobs", "snapshots", "snapshots/main", "snapshots/main/1_Pooling", "secret"}) {
    ASSERT_TRUE(fs.CreateFolder(Path(folder)).ok());
  }
  WriteShard("blobs/0", {"a"});
  Write("blobs/1");
  Write("secret/key");
  ASSERT_EQ(::symlink("../../blobs/0", Path("snapshots/main/model.safetensors").c_str()), 0);
  ASSERT_EQ(::symlink("../../blobs/1", Path("snapshots/main/config.json").c_str()), 0);
  ASSERT_EQ(::symlink("../../../blobs/1", Path("snapshots/main/1_Pooling/config.json").c_str()), 0);
  ASSERT_EQ(::symlink("../../secret", Path("snapshots/main/data").c_str()), 0);
  const Checkpoint c = Checkpoint::Open(fs, Path("snapshots/main")).value();
  EXPECT_THAT(Names(c), ElementsAre("0:a"));
  EXPECT_THAT(c.other_files(), ElementsAre("1_Pooling/config.json", "config.json"));
  EXPECT_THAT(c.warnings(),
              ElementsAre(AllOf(HasSubstr("3 files of "), HasSubstr("are links out of it"),
                                HasSubstr("'config.json' -> '"), HasSubstr("blobs/1'")),
                          AllOf(HasSubstr("'data' is left out: it is a link to the folder"), HasSubstr("secret"))));
}

TEST_F(CheckpointTest, WhatIsUnreadableIsSkippedWithAWarning) {
  WriteShard("model.safetensors", {"a"});
  ASSERT_TRUE(LocalFileSystem().CreateFolder(Path("sub")).ok());
  Write("sub/file");
  Write("config.json");
  struct Case {
    FileCall call;
    int n;
    std::string name;
  };
  for (const Case& c : std::vector<Case>{
           {FileCall::kOpen, 2, "config.json"}, {FileCall::kOpen, 3, "sub/file"}, {FileCall::kList, 3, "sub/"}}) {
    FaultInjectingFileSystem faulty;
    faulty.FailNth(c.call, c.n, EACCES);
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(faulty, folder_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_THAT(checkpoint->warnings(), ElementsAre(absl::StrCat("'", c.name, "' is left out: it cannot be read")));
    EXPECT_EQ(checkpoint->other_files().size(), 1u);
    faulty.FailNth(c.call, c.n, EIO);  // an I/O error must not look like a missing permission
    EXPECT_FALSE(Checkpoint::Open(faulty, folder_).ok());
  }
}

TEST_F(CheckpointTest, AnOutputInsideIsLeftOut) {
  const FileSystem& fs = LocalFileSystem();
  WriteShard("only.safetensors", {"a"});
  for (const char* folder : {"out", "out.aqt-old"}) ASSERT_TRUE(fs.CreateFolder(Path(folder)).ok());
  for (const char* file : {"config.json", "out/config.json", "out.aqt-old/config.json"}) Write(file);
  ASSERT_EQ(::symlink("out", Path("by_link").c_str()), 0);
  for (const char* out : {"out", "out/", "by_link"}) {
    const Checkpoint c = Checkpoint::Open(fs, folder_, {.leave_out = Path(out)}).value();
    EXPECT_THAT(c.other_files(), Not(Contains("out/config.json"))) << out;
    EXPECT_THAT(c.other_files(), Not(Contains("by_link/config.json"))) << out;
  }
  EXPECT_EQ(Checkpoint::Open(fs, folder_, {.leave_out = Path("none")})->other_files().size(), 4u);
  WriteShard("result.safetensors", {"b"});
  ExpectRefused(Code::kFailedPrecondition, "several .safetensors files");
  const Checkpoint c = Checkpoint::Open(fs, folder_, {.leave_out = Path("result.safetensors")}).value();
  EXPECT_THAT(Names(c), ElementsAre("0:a"));
  EXPECT_THAT(c.unused_weight_files(), IsEmpty());
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  WriteShard("1.safetensors", {"a", "b"});
  WriteShard("2.safetensors", {"c"});
  const WeightMap good = {{"a", "1.safetensors"}, {"b", "1.safetensors"}, {"c", "2.safetensors"}};
  const auto with = [&](const std::string& tensor, const std::string& file) {
    WeightMap map = good;
    map.emplace_back(tensor, file);
    return map;
  };
  WriteIndex(good);
  const Checkpoint c = Open().value();
  EXPECT_THAT(Names(c), ElementsAre("0:a", "0:b", "1:c"));
  EXPECT_TRUE(BitEqual(c.ReadArray("c").value(), Array::Of<uint8_t>({'2'}, {1})));
  EXPECT_TRUE(BitEqual(c.ReadArray("b").value(), Array::Of<uint8_t>({'1'}, {1})));

  WriteIndex(with("d", "2.safetensors"));
  ExpectRefused(Code::kDataLoss,
                "'d': model.safetensors.index.json says that it is in shard 2.safetensors, but it is not");
  WriteIndex({{"a", "1.safetensors"}, {"c", "2.safetensors"}});
  ExpectRefused(Code::kDataLoss, "'b': is in shard 1.safetensors, but not in model.safetensors.index.json");
  WriteIndex({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "2.safetensors"}});
  ExpectRefused(Code::kDataLoss, "'b': is in shard 1.safetensors, but model.safetensors.index.json says 2.safetensors");
  WriteIndex(with("d", "0.safetensors"));
  ExpectRefused(Code::kNotFound, "lacks 1 of 3 shards that model.safetensors.index.json names (0.safetensors)");
  Write(kIndexFile, R"({"weight_map":{"a":"../1.safetensors"}})");
  ExpectRefused(Code::kDataLoss, "'../1.safetensors'");

  WriteIndex(good);
  WriteShard("2.safetensors", {"b", "c"});
  ExpectRefused(Code::kDataLoss, "'b': is in shard 2.safetensors, but model.safetensors.index.json says 1.safetensors");
  Write("2.safetensors", "short");
  ExpectRefused(Code::kDataLoss, "2.safetensors': the file has 5 bytes");
}

TEST_F(CheckpointTest, ASetWithoutAnIndex) {
  WriteShard("model-00001-of-00002.safetensors", {"a"});
  WriteShard("model-00002-of-00002.safetensors", {"b"});
  const Checkpoint c = Open().value();
  EXPECT_THAT(Names(c), ElementsAre("0:a", "1:b"));
  EXPECT_FALSE(c.has_index());
  EXPECT_TRUE(c.is_sharded());
  EXPECT_EQ(c.index_name(), kIndexFile);
  WriteShard("model-00002-of-00002.safetensors", {"a"});
  ExpectRefused(Code::kDataLoss,
                "'a': is in both model-00001-of-00002.safetensors and model-00002-of-00002.safetensors");
}

TEST_F(CheckpointTest, AnAdapterBesideIsAnotherFile) {
  WriteShard("model.safetensors", {"a"});
  WriteShard("adapter_model.safetensors", {"b"});
  Write("adapter_config.json");
  EXPECT_THAT(Open()->other_files(), ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  EXPECT_THAT(Open()->unused_weight_files(), IsEmpty());
}

TEST_F(CheckpointTest, ManyShardsNeedFewDescriptors) {
  constexpr int kShards = 300;
  WeightMap map;
  for (int i = 1; i <= kShards; ++i) {
    const std::string file = absl::StrFormat("model-%05d-of-%05d.safetensors", i, kShards);
    WriteShard(file, {absl::StrCat("t", i)});
    map.emplace_back(absl::StrCat("t", i), file);
  }
  WriteIndex(map);
  rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit few{.rlim_cur = 64, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const absl::StatusOr<Checkpoint> c = Open();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_TRUE(c.ok()) << c.status();
  for (const TensorInfo& t : c->tensors()) EXPECT_TRUE(c->ReadArray(t).ok()) << t.name;
}

TEST_F(CheckpointTest, PassesOnFileErrors) {
  WriteShard("1.safetensors", {"a"});
  WriteIndex({{"a", "1.safetensors"}});
  for (const FileCall call : {FileCall::kStat, FileCall::kList, FileCall::kOpen, FileCall::kRead}) {
    for (int n = 1;; ++n) {
      FaultInjectingFileSystem faulty;
      faulty.FailNth(call, n, EACCES);
      const absl::StatusOr<Checkpoint> c = Checkpoint::Open(faulty, folder_);
      if (faulty.NumCalls(call) < n) {  // each call has failed once
        EXPECT_TRUE(c.ok()) << c.status();
        EXPECT_GT(n, 1);
        break;
      }
      EXPECT_EQ(c.status().code(), Code::kPermissionDenied) << static_cast<int>(call) << " " << n;
    }
  }
}

}  // namespace
}  // namespace aqt::io
