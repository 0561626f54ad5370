#include "aqt/io/containers/open_container.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/io/containers/container_source.h"
#include "aqt/io/containers/container_testing.h"
#include "aqt/io/file.h"
#include "aqt/io/file_test_fixture.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTestData[] = "aqt/io/containers/testdata";

std::string At(absl::string_view name) { return JoinPath(kTestData, name); }

std::vector<uint8_t> Bytes(const TensorSource& source, const TensorInfo& tensor, int64_t step) {
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor.num_bytes()));
  // From the end on, so that nothing is read in order.
  for (int64_t end = tensor.num_bytes(); end > 0; end -= step) {
    const int64_t begin = std::max<int64_t>(0, end - step);
    const absl::Status status = source.Read(tensor, begin, absl::MakeSpan(bytes).subspan(begin, end - begin));
    EXPECT_TRUE(status.ok()) << status;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenText(const std::string& path, std::string content,
                                                       const ContainerOptions& options = {}) {
  std::unique_ptr<RandomAccessFile> file = TextFile(path, std::move(content));
  return OpenContainers(options)(file);
}

std::string Contents(absl::string_view name) { return *ReadFile(LocalFileSystem(), At(name), 1 << 20); }

// ---- golden: the tensors that the format's own library reads; testdata/README.md

class Recorded : public testing::TestWithParam<const char*> {};

TEST_P(Recorded, HasTheTensors) {
  const absl::StatusOr<Checkpoint> expected =
      Checkpoint::Open(LocalFileSystem(), At(absl::StrCat(GetParam(), ".safetensors")));
  ASSERT_TRUE(expected.ok()) << expected.status();
  CheckpointOptions options;
  options.open_other = OpenContainers({.raw_dtype = FileDType::kBF16});
  const absl::StatusOr<Checkpoint> actual = Checkpoint::Open(LocalFileSystem(), At(GetParam()), options);
  ASSERT_TRUE(actual.ok()) << actual.status();
  EXPECT_EQ(actual->tensors().size(), expected->tensors().size());
  for (const TensorInfo& tensor : expected->tensors()) {
    const TensorInfo* found = actual->Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
    const std::vector<uint8_t> bytes = Bytes(*expected, tensor, tensor.num_bytes());
    EXPECT_EQ(Bytes(*actual, *found, found->num_bytes()), bytes) << tensor.name;
    EXPECT_EQ(Bytes(*actual, *found, 8 * 7), bytes) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Recorded,
                         testing::Values("views.bin", "old_format.bin", "old_format_4.bin", "protocol_4.pt",
                                         "newer_types.bin", "state_dict.bin", "training.pth"));
INSTANTIATE_TEST_SUITE_P(NumPy, Recorded,
                         testing::Values("stored.npz", "deflated.npz", "streamed.npz", "streamed_zip64.npz",
                                         "versions.npz", "array.npy", "bfloat16.npz"));
INSTANTIATE_TEST_SUITE_P(Flax, Recorded,
                         testing::Values("types.msgpack", "chunked.msgpack", "frozen_int8.msgpack",
                                         "frozen_int4.msgpack", "frozen_legacy_int8.msgpack",
                                         "frozen_legacy_int4.msgpack", "frozen_int8_bf16.msgpack"));

// ---- property: damaged files give errors, never a crash or a read outside (sanitizers)

TEST(Damaged, CutAnywhere) {
  for (const char* name : {"views.bin", "old_format.bin", "old_format_4.bin", "stored.npz", "deflated.npz", "array.npy",
                           "types.msgpack", "chunked.msgpack"}) {
    const std::string whole = Contents(name);
    for (size_t n = 0; n < whole.size(); n += n < 300 ? 1 : 13) {
      const auto source = OpenText(name, whole.substr(0, n));
      EXPECT_FALSE(source.ok() && *source != nullptr && !(*source)->tensors().empty()) << name << " " << n;
    }
  }
}

TEST(Damaged, AnyByteChanged) {
  for (const char* name :
       {"views.bin", "old_format.bin", "stored.npz", "deflated.npz", "array.npy", "types.msgpack", "chunked.msgpack"}) {
    const std::string whole = Contents(name);
    for (size_t i = 0; i < whole.size(); i += 3) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
      const auto source = OpenText(name, changed);
      if (!source.ok() || *source == nullptr) continue;
      for (const TensorInfo& tensor : (*source)->tensors()) {
        if (tensor.num_bytes() > 1 << 16) continue;
        std::vector<uint8_t> bytes(static_cast<size_t>(tensor.num_bytes()));
        (*source)->Read(tensor, 0, absl::MakeSpan(bytes)).IgnoreError();
      }
    }
  }
}

TEST(Damaged, AChangedDeflatedByteIsFound) {
  const std::string text(3000, 'x');
  std::string zip =
      MakeZip({{"a.npy", MakeNpy("{'descr': '|u1', 'fortran_order': False, 'shape': (3000,)}", text), true}});
  const auto good = OpenText("a.npz", zip);
  ASSERT_TRUE(good.ok()) << good.status();
  int errors = 0;
  for (size_t i = 35; i < zip.find("PK\x01\x02"); ++i) {
    std::string changed = zip;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    const auto source = OpenText("a.npz", changed);
    if (!source.ok()) {
      ++errors;
      continue;
    }
    std::vector<uint8_t> bytes(3000);
    const absl::Status status = (*source)->Read((*source)->tensors()[0], 0, absl::MakeSpan(bytes));
    if (!status.ok()) {
      ++errors;
      continue;
    }
    EXPECT_EQ(std::string(bytes.begin(), bytes.end()), text) << i;  // a bit that does not matter
  }
  EXPECT_GT(errors, 20);
}

// ---- exact: what is refused, and how

TEST(NumPy, Refuses) {
  const auto refusal = [](const std::string& dict, const std::string& content, const ContainerOptions& options = {}) {
    const auto source = OpenText("x.npy", MakeNpy(dict, content), options);
    return source.ok() ? std::string("accepted") : std::string(source.status().message());
  };
  const auto descr = [](const std::string& type) {
    return absl::StrCat("{'descr': ", type, ", 'fortran_order': False, 'shape': (2,), }");
  };
  EXPECT_EQ(refusal(descr("'<f4'"), std::string(8, '\0')), "accepted");
  EXPECT_EQ(refusal("{\"shape\": (2L, ), \"descr\":\"<f4\",'fortran_order':True}  \n", std::string(8, '\0')),
            "accepted");
  EXPECT_THAT(refusal(descr("'>f4'"), std::string(8, '\0')), HasSubstr("is big-endian; save it as '<f4'"));
  EXPECT_THAT(refusal(descr("'|O'"), ""), HasSubstr("pickled Python objects are never read"));
  EXPECT_THAT(refusal(descr("'<U5'"), ""), HasSubstr("'<U5' is not that of a tensor"));
  EXPECT_THAT(refusal(descr("[('a', '<f4')]"), ""), HasSubstr("structured type"));
  EXPECT_THAT(refusal(descr("'|V2'"), "abcd"), HasSubstr("--dtype bf16"));
  EXPECT_THAT(refusal(descr("'|V1'"), "ab"), HasSubstr("--dtype f8_e4m3"));
  EXPECT_THAT(refusal(descr("'|V2'"), "abcd", {.raw_dtype = FileDType::kF8E4M3}), HasSubstr("--dtype bf16"));
  EXPECT_EQ(refusal(descr("'|V1'"), "ab", {.raw_dtype = FileDType::kF8E4M3}), "accepted");
  EXPECT_THAT(refusal(descr("'<c16'"), std::string(32, '\0')), HasSubstr("is not that of a tensor"));
  EXPECT_THAT(refusal(descr("'<f4'"), "1234567"), HasSubstr("takes 8 bytes, but 7 follow"));
  EXPECT_THAT(refusal(descr("'<f4'"), "123456789"), HasSubstr("takes 8 bytes, but 9 follow"));
  EXPECT_THAT(refusal("{'descr': '<f4', 'descr': '<f4'}", ""), HasSubstr("has the key descr twice"));
  EXPECT_THAT(refusal("{'descr': '<f4', 'shape': ()}", ""), HasSubstr("lacks descr, fortran_order or shape"));
  EXPECT_THAT(refusal("{'descr': '<f4', 'x': 1}", ""), HasSubstr("unknown key 'x'"));
  EXPECT_THAT(refusal("{'descr': '<f4', 'shape': (-1,)}", ""), HasSubstr("where an extent is expected"));
  EXPECT_THAT(refusal("{'shape': (99999999999999999999,)}", ""), HasSubstr("where an extent is expected"));
  EXPECT_THAT(refusal("{'descr': '<f4', 'fortran_order': 1}", ""), HasSubstr("where True or False is expected"));
  EXPECT_THAT(refusal("__import__('os')", ""), HasSubstr("where '{' is expected"));
  EXPECT_THAT(refusal("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", ""),
              HasSubstr("exceeds 2^63-1 bits"));
  std::string version = MakeNpy(descr("'<f4'"), std::string(8, '\0'));
  version[6] = 4;
  EXPECT_THAT(OpenText("x.npy", version).status().message(), HasSubstr("format version 4.0"));
}

TEST(NumPy, MembersThatAreNoArraysAreNamed) {
  const std::string npy = MakeNpy("{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", "x");
  const auto source = OpenText("x.npz", MakeZip({{"a.npy", npy}, {"notes.txt", "hello"}}));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->tensors().size(), 1u);
  EXPECT_THAT((*source)->warnings(), ElementsAre(HasSubstr("'notes.txt'")));
  EXPECT_THAT(OpenText("x.npz", MakeZip({{"notes.txt", "hello"}})).status().message(),
              HasSubstr("neither .npy arrays nor the data.pkl"));
}

TEST(NumPy, CompressedAndTransposedHasALimit) {
  const int64_t n = ContainerSource::kMaxDecodedBytes / 8 + 1;
  std::string content = MakeNpy(absl::StrCat("{'descr': '<f4', 'fortran_order': True, 'shape': (2, ", n, ")}"), "");
  const int64_t size = static_cast<int64_t>(content.size()) + n * 8;
  content.resize(2 << 20);  // the first blocks; what follows is not looked at
  std::string zip = MakeZip({{"w.npy", content, true}});
  const auto set = [&](size_t at, int64_t value) { std::memcpy(&zip[at], &value, 4); };
  const std::string stored = Deflate(content);
  // The sizes, in both headers; more deflated bytes make the larger size possible.
  const size_t more = static_cast<size_t>(size / 1000);
  zip.insert(zip.find("PK\x01\x02"), std::string(more, '\0'));
  set(18, static_cast<int64_t>(stored.size() + more));
  set(22, size);
  const size_t directory = zip.find("PK\x01\x02");
  set(directory + 20, static_cast<int64_t>(stored.size() + more));
  set(directory + 24, size);
  set(zip.size() - 6, static_cast<int64_t>(directory));
  EXPECT_THAT(OpenText("w.npz", zip).status().message(), HasSubstr("both compressed and not in row-major order"));
}

TEST(Zip, Refuses) {
  const std::string npy = MakeNpy("{'descr': '|u1', 'fortran_order': False, 'shape': (4,)}", "abcd");
  const std::string good = MakeZip({{"a.npy", npy}, {"b.npy", npy}});
  ASSERT_TRUE(OpenText("x.npz", good).ok());
  const size_t directory = good.find("PK\x01\x02");
  const size_t second = good.find("PK\x01\x02", directory + 4);
  const auto changed = [&](size_t at, const std::string& bytes) {
    std::string zip = good;
    zip.replace(at, bytes.size(), bytes);
    const auto source = OpenText("x.npz", zip);
    return source.ok() ? std::string("accepted") : std::string(source.status().message());
  };
  EXPECT_THAT(changed(directory + 8, "\x01"), HasSubstr("'a.npy' of the zip archive is encrypted"));
  EXPECT_THAT(changed(directory + 10, "\x0c"), HasSubstr("compressed by method 12"));
  EXPECT_THAT(changed(directory + 20, "\x01"), HasSubstr("is stored in"));
  EXPECT_THAT(changed(directory + 24, "\xff\xff\xff\xff"), HasSubstr("lacks its ZIP64 sizes"));
  EXPECT_THAT(changed(directory + 42, "\x05"), HasSubstr("has no header at byte 5"));
  EXPECT_THAT(changed(directory + 42, "\xff\xff\xff\x7f"), HasSubstr("begins after the end"));
  EXPECT_THAT(changed(directory + 46, "c"), HasSubstr("another name"));
  EXPECT_THAT(changed(second, "\x01"), HasSubstr("fewer members than it says"));
  EXPECT_THAT(changed(good.size() - 12, "\xff\xff"), HasSubstr("do not fit into a directory"));
  EXPECT_THAT(changed(good.size() - 6, "\xff\xff\xff\x7f"), HasSubstr("is not inside the file"));
  EXPECT_THAT(OpenText("x.npz", MakeZip({{"a.npy", npy}, {"a.npy", npy}})).status().message(),
              HasSubstr("two members are named 'a.npy'"));
  // The first member reaches into the second one.
  std::string overlap = good;
  const int size = static_cast<int>(npy.size()) + 40;
  for (const size_t at : {size_t{18}, size_t{22}, directory + 20, directory + 24}) std::memcpy(&overlap[at], &size, 4);
  EXPECT_THAT(OpenText("x.npz", overlap).status().message(), HasSubstr("members 'a.npy' and 'b.npy' overlap"));
}

TEST(Flax, Refuses) {
  const auto refusal = [](const std::string& bytes) {
    const auto source = OpenText("x.msgpack", bytes);
    return source.ok() ? std::string(*source == nullptr ? "unknown" : "accepted")
                       : std::string(source.status().message());
  };
  const auto array = [](const std::string& payload, int type = 1) {
    return absl::StrCat("\x81\xa1w\xc7", std::string(1, static_cast<char>(payload.size())),
                        std::string(1, static_cast<char>(type)), payload);
  };
  const std::string u8 = std::string("\x93\x91\x02\xa5uint8\xc4\x02hi", 13);
  EXPECT_EQ(refusal(array(u8)), "accepted");
  EXPECT_EQ(refusal(std::string("\x80", 1)), "accepted");
  EXPECT_THAT(refusal(array(u8) + "x"), HasSubstr("1 bytes are left"));
  EXPECT_THAT(refusal(array(u8, 5)), HasSubstr("extension of type 5"));
  EXPECT_THAT(refusal(array("\x92\x91\x02\xa5uint8")), HasSubstr("an array of shape, type and bytes"));
  EXPECT_THAT(refusal(array(std::string("\x93\x91\xff\xa5uint8\xc4\x02hi", 13))), HasSubstr("not an extent"));
  EXPECT_THAT(refusal(array(std::string("\x93\x91\x03\xa5uint8\xc4\x02hi", 13))),
              HasSubstr("has 2 bytes, but uint8[3] takes 3"));
  EXPECT_THAT(refusal(array(std::string("\x93\x91\x02\xa5wrong\xc4\x02hi", 13))),
              HasSubstr("'wrong', which tensors cannot have"));
  EXPECT_THAT(refusal(array(std::string("\x93\x91\x02\xa5uint8\xc4\x01hi", 13))),
              HasSubstr("not the end of the array"));
  EXPECT_THAT(refusal(absl::StrCat("\x82\xa1w\xc7\x0d\x01", u8, "\xa1w\xc7\x0d\x01", u8)),
              HasSubstr("'w': is there twice"));
  EXPECT_THAT(refusal(std::string("\x81\xa1w\xc1", 4)), HasSubstr("0xc1, which begins no value"));
  EXPECT_THAT(refusal(std::string("\x81\xa1w\xc6\xff\xff\xff\xff", 8)), HasSubstr("begins 4294967295 bytes"));
  EXPECT_THAT(refusal(std::string("\xdf\x00\x03\xff\xff\xa1w", 7)), HasSubstr("begins 262143 bytes"));
  EXPECT_THAT(refusal(std::string("\xdf\xff\xff\xff\xff\xa1w", 7)), HasSubstr("more than 262144 values"));
  std::string deep;
  for (int i = 0; i < 70; ++i) deep += "\x81\xa1m";
  EXPECT_THAT(refusal(deep + "\xc0"), HasSubstr("64 maps deep"));
}

TEST(Flax, OtherValuesAreNamed) {
  const auto source = OpenText("types.msgpack", Contents("types.msgpack"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->warnings(), ElementsAre(HasSubstr("'nested.imaginary' and others")));
}

TEST(PyTorch, OtherValuesAreNamed) {
  const auto source = OpenText("training.pth", Contents("training.pth"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->warnings(), ElementsAre(HasSubstr("'epoch' and others")));
  EXPECT_THAT((*OpenText("views.bin", Contents("views.bin")))->warnings(), IsEmpty());
}

TEST(OpenContainers, LeavesWhatItDoesNotKnow) {
  std::unique_ptr<RandomAccessFile> file = TextFile("x.bin",
                                                    "\x80\x04"
                                                    "something");
  const auto source = OpenContainers()(file);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(*source, nullptr);
  EXPECT_NE(file, nullptr);
}

// ---- property: compressed data in any order, and by many threads

TEST(Deflated, AnyOrder) {
  std::string text(10 << 20, '\0');
  std::mt19937 random(1);
  for (size_t i = 0; i < text.size(); i += 5) text[i] = static_cast<char>(random() % 7);
  const auto source = OpenText(
      "x.npz",
      MakeZip({{"w.npy",
                MakeNpy(absl::StrCat("{'descr': '|u1', 'fortran_order': False, 'shape': (", text.size(), ",)}"), text),
                true}}));
  ASSERT_TRUE(source.ok()) << source.status();
  const TensorInfo& tensor = (*source)->tensors()[0];
  const auto check = [&](int64_t at, int64_t n) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    const absl::Status status = (*source)->Read(tensor, at, absl::MakeSpan(bytes));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(std::memcmp(bytes.data(), text.data() + at, bytes.size()), 0) << at;
  };
  for (const int64_t at : {9'999'999, 0, 5'000'000, 1 << 20, (1 << 20) - 1, 10'000'000, 3}) check(at, 300'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t at = t * 100'000; at + 100'000 <= static_cast<int64_t>(text.size()); at += 400'000)
        check(at, 100'000);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- folders

class Folder : public FileTest {
 protected:
  void Copy(absl::string_view name, absl::string_view to) {
    ASSERT_TRUE(CopyFile(LocalFileSystem(), At(name), Path(to)).ok());
  }
  absl::StatusOr<Checkpoint> Open() const {
    CheckpointOptions options;
    options.open_other = OpenContainers();
    return Checkpoint::Open(LocalFileSystem(), Path(""), options);
  }
};

TEST_F(Folder, ModelOfPyTorch) {
  Copy("state_dict.bin", "pytorch_model.bin");
  Copy("views.bin", "training_args.bin");
  Copy("views.bin", "optimizer.bin");
  Copy("types.msgpack", "flax_model.msgpack");
  const absl::StatusOr<Checkpoint> checkpoint = Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_NE(checkpoint->Find("0.weight"), nullptr);
  EXPECT_THAT(checkpoint->shard_names(), ElementsAre("pytorch_model.bin"));
  EXPECT_EQ(checkpoint->stem(), "model");
  EXPECT_EQ(checkpoint->index_name(), kIndexFile);
  EXPECT_EQ(checkpoint->index_file(), "");
  EXPECT_FALSE(checkpoint->is_sharded());
  EXPECT_THAT(checkpoint->other_files(), ElementsAre("flax_model.msgpack", "optimizer.bin", "training_args.bin"));
  // Only with an opener.
  EXPECT_THAT(Checkpoint::Open(LocalFileSystem(), Path("")).status().message(),
              HasSubstr("has no .safetensors file, but"));
}

TEST_F(Folder, SafetensorsIsPreferred) {
  Copy("state_dict.bin", "pytorch_model.bin");
  Copy("views.bin.safetensors", "model.safetensors");
  EXPECT_THAT(Open()->shard_names(), ElementsAre("model.safetensors"));
}

TEST_F(Folder, Shards) {
  Copy("state_dict.bin", "pytorch_model-00001-of-00002.bin");
  Copy("types.msgpack", "pytorch_model-00002-of-00002.bin");  // the content decides
  const auto check = [&] {
    const absl::StatusOr<Checkpoint> checkpoint = Open();
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_TRUE(checkpoint->is_sharded());
    EXPECT_EQ(checkpoint->shards().size(), 2u);
    EXPECT_EQ(checkpoint->index_name(), kIndexFile);
    for (const TensorInfo& tensor : checkpoint->tensors()) Bytes(*checkpoint, tensor, 1 << 20);
  };
  check();
  const absl::StatusOr<Checkpoint> checkpoint = Open();
  WeightMap map;
  for (const TensorInfo& t : checkpoint->tensors()) map.emplace_back(t.name, checkpoint->shard_names()[t.shard]);
  const std::string index = *MakeIndex(map, 1);
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("pytorch_model.bin.index.json"), index).ok());
  check();
  EXPECT_EQ(Open()->index_file(), "pytorch_model.bin.index.json");
  ASSERT_TRUE(LocalFileSystem().Remove(Path("pytorch_model-00002-of-00002.bin")).ok());
  EXPECT_THAT(Open().status().message(), HasSubstr("lacks 1 of 2 shards that pytorch_model.bin.index.json names"));
  ASSERT_TRUE(LocalFileSystem().Remove(Path("pytorch_model.bin.index.json")).ok());
  EXPECT_THAT(Open().status().message(), HasSubstr("lacks 1 of 2 files of a checkpoint"));
}

TEST_F(Folder, OtherNames) {
  Copy("stored.npz", "weights.npz");
  EXPECT_EQ(Open()->stem(), "model");
  Copy("stored.npz", "more.npz");
  EXPECT_THAT(Open().status().message(), HasSubstr("has several .npz files (more.npz, weights.npz)"));
  Copy("types.msgpack", "flax_model.msgpack");
  EXPECT_THAT(Open()->shard_names(), ElementsAre("flax_model.msgpack"));
  Copy("state_dict.bin", "diffusion_pytorch_model.bin");
  EXPECT_EQ(Open()->stem(), "diffusion_pytorch_model");
}

TEST_F(Folder, ShardsThatAreNotKnown) {
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("pytorch_model.bin"), "<html>").ok());
  EXPECT_THAT(Open().status().message(), HasSubstr("it looks like a web page"));
}

}  // namespace
}  // namespace aqt::io
