#ifndef AQT_NN_TRAIN_PROGRESS_H_
#define AQT_NN_TRAIN_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string>

namespace aqt::nn {

// Lines about a training that is under way:
//   const ProgressLine line(steps, batch, trainer.steps());
//   ... line.At(trainer.steps(), loss) ...
// gives "step 20/100  loss 0.4321  160 examples/s  10.0 steps/s  0:02 elapsed  0:08 left". All rates are means since
// the object was made; what is left is that of the steps that are left at this rate.
class ProgressLine {
 public:
  // Seconds since any moment; never goes back.
  using Clock = std::function<double()>;

  // The training goes from step `first` to step `steps`, with so many examples in a batch. Null: the steady clock of
  // the machine.
  ProgressLine(int64_t steps, int64_t batch, int64_t first = 0, Clock clock = nullptr);

  // After `step` steps of the whole training. Before the first step, and while no time has passed, rates are 0 and what
  // is left is "?".
  std::string At(int64_t step, double loss) const;

 private:
  int64_t steps_, batch_, first_;
  Clock clock_;
  double start_;
};

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_PROGRESS_H_
