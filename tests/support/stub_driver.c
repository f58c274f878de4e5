/* A libcuda that launches nothing, and refuses what a GPU refuses: enough for Triton's compiler,
   binder and launcher to run on CPU tensors. stub_driver.py builds it. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

/* Of compute capability 8.0 to 12.0: CUDA C++ programming guide, "Technical specifications". */
enum { MOST_GRID_YZ = 65535, MOST_THREADS = 1024, MULTIPROCESSORS = 132 };

static long launches;
static int most_shared(void) { return atoi(getenv("STUB_SHARED")); }

long stub_launches(void) { return launches; }

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid grid or shared memory" : "stub error";
  return 0;
}
CUresult cuInit(unsigned flags) { return 0; }
CUresult cuDeviceGet(CUdevice* device, int index) { *device = index; return 0; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = most_shared(); break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = most_shared() + 1024; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = MULTIPROCESSORS; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    default: *value = 1024;
  }
  return 0;
}
CUresult cuCtxGetDevice(CUdevice* device) { *device = 0; return 0; }
CUresult cuCtxGetCurrent(CUcontext* context) { *context = (CUcontext)1; return 0; }
CUresult cuCtxSetCurrent(CUcontext context) { return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) { *context = (CUcontext)1; return 0; }
CUresult cuModuleLoadData(CUmodule* module, const void* data) { *module = (CUmodule)1; return 0; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  *function = (CUfunction)1;
  return 0;
}
CUresult cuModuleUnload(CUmodule module) { return 0; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? MOST_THREADS : 0;
  return 0;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return 0; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return 0; }
CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction function, const CUlaunchConfig* config) {
  *count = 1;
  return 0;
}
CUresult cuCtxGetLimit(size_t* value, CUlimit limit) { *value = 0; return 0; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return 0; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return 0;
}
CUresult cuDriverGetVersion(int* version) { *version = 13000; return 0; }
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  *(CUdeviceptr*)data = pointer;
  return 0;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** args, void** extra) {
  ++launches;
  const int fits = config->gridDimY <= MOST_GRID_YZ && config->gridDimZ <= MOST_GRID_YZ &&
                   (int)config->sharedMemBytes <= most_shared();
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/* Asked for by name, never called: other names here, as cuda.h declares their arguments. */
CUresult stub_launch(void) __asm__("cuLaunchKernel");
CUresult stub_tiled(void) __asm__("cuTensorMapEncodeTiled");
CUresult stub_im2col(void) __asm__("cuTensorMapEncodeIm2col");
CUresult stub_launch(void) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult stub_tiled(void) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult stub_im2col(void) { return CUDA_ERROR_NOT_SUPPORTED; }
