#ifndef AQT_NN_TRAIN_PROGRESS_H_
#define AQT_NN_TRAIN_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string>

namespace aqt::nn {

// Progress lines of a training:
//   const ProgressLine line(steps, batch, trainer.steps());
//   ... line.At(trainer.steps(), loss) ...
// gives "step 20/100 loss 0.4321 160 examples/s 10.0 steps/s 0:02 elapsed 0:08 left". All rates are means since
// construction; the time left assumes this rate.
class ProgressLine {
 public:
  // Seconds since an arbitrary moment; monotonic.
  using Clock = std::function<double()>;

  // The training runs from step `first` to step `steps`, with `batch` examples in a batch. Null: the machine's steady
  // clock.
  ProgressLine(int64_t steps, int64_t batch, int64_t first = 0, Clock clock = nullptr);

  // The line after `step` steps of the whole training. Before the first step, and while no time has passed, rates are 0
  // and the time left is "?".
  std::string At(int64_t step, double loss) const;

 private:
  int64_t steps_, batch_, first_;
  Clock clock_;
  double start_;
};

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_PROGRESS_H_
