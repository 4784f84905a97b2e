// A CUDA device that does nothing, registered in a CPU build of torch.
//
// Autograd, autocast and torch.compile ask torch for the guard and the hooks of a device before they
// accept tensors on it. Every request here succeeds without effect.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kCuda> {
  c10::Device getDevice() const override { return {kCuda, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
};

Guard guard;
c10::impl::DeviceGuardImplRegistrar registrar(kCuda, &guard);

}  // namespace

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
