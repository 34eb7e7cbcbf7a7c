/* SPDX-License-Identifier: Apache-2.0 */
#include "register.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "launch.h"

#define HUGE_PAGE (UINT64_C(2) << 20)

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Where ranges may end: at `first` and every `period` from there. */
struct ends {
	uint64_t first, period;
};

/* The ends of both rows and pages, or 0 when there is none. */
static int find_ends(uint64_t row, uint64_t stride, uint64_t page,
		     struct ends *ends)
{
	uint64_t tries = stride / gcd(stride, page);
	uint64_t at = (row + page - 1) / page * page;

	for (uint64_t i = 0; i < tries; i++, at += page)
		if ((at - row) % stride == 0) {
			*ends = (struct ends){at, tries * page};
			return 1;
		}
	return 0;
}

/* Whole huge pages if ranges are long enough for them. */
static struct ends ends_of(uint64_t row, uint64_t stride, uint64_t chunk)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct ends ends;

	if (find_ends(row, stride, HUGE_PAGE, &ends) && ends.period <= chunk)
		return ends;
	if (find_ends(row, stride, page, &ends))
		return ends;
	return (struct ends){row / page * page, page};
}

/* The last end in (from, from + chunk], else the first one past that. */
static uint64_t next_end(const struct ends *ends, uint64_t from, uint64_t chunk)
{
	uint64_t limit = from + chunk, end;

	if (limit < ends->first)
		return ends->first;
	end = ends->first + (limit - ends->first) / ends->period * ends->period;
	return end > from ? end : end + ends->period;
}

static enum engram_status add(struct cuda_ranges *ranges,
			      struct cuda_range range, struct engram_error *err)
{
	if (ranges->count == ranges->capacity) {
		uint32_t capacity = ranges->capacity ? ranges->capacity * 2 : 8;
		struct cuda_range *list =
			reallocarray(ranges->list, capacity, sizeof(*list));

		if (!list)
			return engram_error_set(err, ENGRAM_ENOMEM,
						"no memory for the list of "
						"ranges");
		ranges->list = list;
		ranges->capacity = capacity;
	}
	ranges->list[ranges->count++] = range;
	ranges->bytes += range.bytes;
	return ENGRAM_OK;
}

enum engram_status cuda_ranges_cut(struct cuda_ranges *ranges, void *mapping,
				   uint64_t bytes, const void *first_row,
				   uint64_t stride, uint64_t chunk_bytes,
				   struct engram_error *err)
{
	struct ends ends = ends_of((uintptr_t)first_row, stride, chunk_bytes);
	uint64_t begin = (uintptr_t)mapping, at = 0;

	/* On huge pages much may be mapped before the first row: there are rows
	 * of a neighbour there. */
	if (ends.first > begin)
		ends.first -=
			(ends.first - begin - 1) / ends.period * ends.period;
	while (at < bytes) {
		uint64_t end = next_end(&ends, begin + at, chunk_bytes) - begin;
		enum engram_status status;

		if (end > bytes)
			end = bytes;
		status = add(ranges,
			     (struct cuda_range){(char *)mapping + at, end - at,
						 ranges->mappings},
			     err);
		if (status)
			return status;
		at = end;
	}
	ranges->mappings++;
	return ENGRAM_OK;
}

void cuda_ranges_free(struct cuda_ranges *ranges)
{
	free(ranges->list);
	*ranges = (struct cuda_ranges){0};
}

static const char *fix_of(cudaError_t code)
{
	switch (code) {
	case cudaErrorMemoryAllocation:
		return "raise the limit of locked memory (ulimit -l unlimited, "
		       "docker --ulimit memlock=-1), and leave 2 MiB of device "
		       "memory a GiB for page tables";
	case cudaErrorHostMemoryAlreadyRegistered:
		return "something else in this process has registered the same "
		       "memory: detach it there first";
	case cudaErrorNotSupported:
	case cudaErrorInvalidValue:
		return "check that the table's backing is /dev/shm, hugetlbfs "
		       "or memfd, and update the NVIDIA driver";
	case cudaErrorOperatingSystem:
		return "see dmesg: the kernel refused to pin the memory";
	default:
		return "see the CUDA documentation of cudaHostRegister, and "
		       "dmesg for the driver's side";
	}
}

static enum engram_status failed(cudaError_t code, const char *call,
				 const struct cuda_range *range,
				 struct engram_error *err)
{
	engram_cuda_status(code, call, err);
	engram_error_context(err, "registering %" PRIu64 " bytes at %p",
			     range->bytes, (void *)range->address);
	engram_error_fix(err, "%s", fix_of(code));
	return ENGRAM_ECUDA;
}

static enum engram_status check_address(const struct cuda_range *range,
					struct engram_error *err)
{
	void *device;
	cudaError_t code = cudaHostGetDevicePointer(&device, range->address, 0);

	if (code)
		return failed(code, "cudaHostGetDevicePointer", range, err);
	if (device == range->address)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "the device sees registered memory at another address "
			 "than the host");
	engram_error_fix(err, "attach with ENGRAM_CUDA_DEVICE, which copies "
			      "the rows into device memory");
	return ENGRAM_EUNSUPPORTED;
}

enum engram_status cuda_register_next(struct cuda_ranges *ranges, int read_only,
				      struct engram_error *err)
{
	const struct cuda_range *range = &ranges->list[ranges->registered];
	unsigned int flags = cudaHostRegisterMapped;
	enum engram_status status;
	cudaError_t code;

	if (read_only)
		flags |= cudaHostRegisterReadOnly;
	code = cudaHostRegister(range->address, range->bytes, flags);
	if (code)
		return failed(code, "cudaHostRegister", range, err);
	status = check_address(range, err);
	if (status) {
		engram_cuda_ignore(cudaHostUnregister(range->address));
		return status;
	}
	ranges->registered++;
	return ENGRAM_OK;
}

void cuda_unregister(struct cuda_ranges *ranges)
{
	while (ranges->registered) {
		ranges->registered--;
		engram_cuda_ignore(cudaHostUnregister(
			ranges->list[ranges->registered].address));
	}
}
