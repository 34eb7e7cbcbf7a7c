/* SPDX-License-Identifier: Apache-2.0 */
#if __has_include(<cublasLt.h>)
#include "cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>

#define TEXT_OF(number)	 #number
#define SONAME_OF(major) "libcublasLt.so." TEXT_OF(major)
/* The major version is the ABI of the header that this was built with. */
#define SONAME SONAME_OF(CUBLAS_VER_MAJOR)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct engram_cublaslt table;
static int loaded;

static const char *resolve(void *library)
{
#define RESOLVE(name)                                           \
	table.name = (__typeof__(name) *)dlsym(library, #name); \
	if (!table.name)                                        \
		return #name;
	ENGRAM_CUBLASLT_FUNCTIONS(RESOLVE)
#undef RESOLVE
	return NULL;
}

static enum engram_status load(struct engram_error *err)
{
	/* finds the one that is loaded already by its soname */
	void *library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
	const char *missing;

	if (!library) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED, "%s", dlerror());
		engram_error_fix(err,
				 "install cuBLAS %d and put its directory "
				 "into LD_LIBRARY_PATH, or give the layer "
				 "a matrix product of your own",
				 CUBLAS_VER_MAJOR);
		return ENGRAM_EUNSUPPORTED;
	}
	missing = resolve(library);
	if (missing) {
		dlclose(library);
		engram_error_set(err, ENGRAM_EUNSUPPORTED, SONAME " has no %s",
				 missing);
		engram_error_fix(err, "install a newer cuBLAS %d",
				 CUBLAS_VER_MAJOR);
		return ENGRAM_EUNSUPPORTED;
	}
	loaded = 1;
	return ENGRAM_OK;
}

enum engram_status engram_cublaslt_load(const struct engram_cublaslt **out,
					struct engram_error *err)
{
	enum engram_status status;

	pthread_mutex_lock(&lock);
	status = loaded ? ENGRAM_OK : load(err);
	pthread_mutex_unlock(&lock);
	*out = &table;
	return status;
}

enum engram_status engram_cublaslt_status(const struct engram_cublaslt *lt,
					  cublasStatus_t code, const char *what,
					  struct engram_error *err)
{
	if (code == CUBLAS_STATUS_SUCCESS)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ECUDA, "%s: %s", what,
			 lt->cublasLtGetStatusString(code));
	engram_error_fix(err, code == CUBLAS_STATUS_NOT_SUPPORTED
				      ? "cuBLASLt can not multiply these "
					"shapes here: align pointers to 16 "
					"bytes, or give the layer a matrix "
					"product of your own"
				      : "run with CUBLASLT_LOG_LEVEL=2 to see "
					"what cuBLASLt objects to");
	return ENGRAM_ECUDA;
}
#endif /* without the header there is nothing to load: see wkv_create.c */
