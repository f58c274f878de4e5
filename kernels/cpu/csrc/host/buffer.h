// Aligned memory for panels and tiles.
#pragma once
#include <algorithm>
#include <cstdint>
#include <new>

namespace kgfast {

template <class T>
struct Buffer {  // 64-byte aligned, not initialised
  explicit Buffer(int64_t count)
      : data(static_cast<T*>(::operator new(sizeof(T) * std::max<int64_t>(count, 1),
                                            std::align_val_t{64}))) {}
  ~Buffer() { ::operator delete(data, std::align_val_t{64}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data;
};

}  // namespace kgfast
