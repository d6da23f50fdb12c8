# Debian packages of the components in cmake/install.cmake: cpack -G DEB --config BUILD/CPackConfig.cmake -B FOLDER.
# They install to /usr, and name the libraries that they need instead of carrying them. tools/check-packages installs
# and removes them.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME mkvm)
set(CPACK_PACKAGE_VENDOR "the mkvm authors")
set(CPACK_PACKAGE_CONTACT "the mkvm authors <mkvm@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL mkvm libmkvm libmkvm-dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE "")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_MKVM_PACKAGE_NAME mkvm)
set(CPACK_DEBIAN_MKVM_PACKAGE_SECTION science)
set(CPACK_COMPONENT_MKVM_DESCRIPTION
    "The command: generates text, compiles, verifies and measures programs. With a small model to try it.")

# Its libevent must not be older; the symbols that it uses would do with any.
string(REPLACE ";" ", " CPACK_DEBIAN_MKVM_PACKAGE_DEPENDS "${MK_LIBEVENT_DEPENDS}")

# A package of a library is named after its soname: two of them can be installed at once.
set(CPACK_DEBIAN_LIBMKVM_PACKAGE_NAME libmkvm${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBMKVM_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBMKVM_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_COMPONENT_LIBMKVM_DESCRIPTION "The shared library, for programs that were linked against it.")

# Those who link the archive, or ask pkg-config anything, need the libraries' own files.
set(CPACK_DEBIAN_LIBMKVM-DEV_PACKAGE_NAME libmkvm-dev)
set(CPACK_DEBIAN_LIBMKVM-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBMKVM-DEV_PACKAGE_DEPENDS
    "libmkvm${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION}), libjansson-dev, libpcre2-dev, libutf8proc-dev, zlib1g-dev")
set(CPACK_COMPONENT_LIBMKVM-DEV_DESCRIPTION "Header, archive, files for pkg-config and CMake, and examples.")
include(CPack)
